"""Writes weights: `.npz` files and Hugging Face folders."""

from typing import Any

import flax.linen as nn
from etils import epath

from vit_jax.interop import (
  arrays,
  families,
  fitting,
  huggingface,
  inference,
  weight_files,
)
from vit_jax.interop.weight_files import ImageSize, Weights, pair
from vit_jax.workdir import files


def _checked(
  params: Any, model: nn.Module, image_size: ImageSize | None, described: Any
) -> Weights:
  """Returns what is to be written: float32, blocks not stacked.

  Raises:
    ValueError: the number of class names is not that of the classes, or the
      parameters do not fit the model or are not finite.
  """
  size = image_size and pair(image_size)
  flat = inference.flatten(params)
  channels = inference.channels(flat)
  weights = Weights('', flat, model, size, channels, **described)
  weight_files.check_class_names(weights.class_names, model.num_classes)
  fitting.check_params(weights)
  return weights


def save_npz(
  path: epath.PathLike,
  params: Any,
  model: nn.Module,
  *,
  image_size: ImageSize | None = None,
  **described: Any,
) -> None:
  """Writes a `.npz` file with the released files' names, in float32.

  Also writes `PATH.json` beside it, with what the arrays' names and shapes do
  not show: the model and its options, the image size, and the other arguments.
  Reading uses `PATH.json` if it exists, but does not need it.

  Args:
    path: ends with `.npz`; local or `gs://`. Replaced if it exists.
    params: the model's parameters, a tree of arrays, blocks stacked or not.
    model: from `models.build`.
    image_size: side or (height, width) that the position embeddings are for.
    **described: `class_names`, `preprocessing`, `decoding`, `prepared_size` and
      `loss` of `Weights`, as far as they are known.

  Raises:
    ValueError: the path has another ending, the number of class names is not
      that of the classes, or the parameters do not fit the model or are not
      finite.
  """
  path = files.absolute(path)
  if path.suffix != '.npz':
    raise ValueError(f'{path} must end with .npz.')
  weights = _checked(params, model, image_size, described)
  name, overrides = inference.describe(model)
  beside = weight_files.beside(path)
  # If the write fails, no old description may stay beside new weights.
  beside.unlink(missing_ok=True)
  arrays.write_npz(path, families.to_released(weights.params))
  weight_files.write_json(
    beside,
    {
      'model': name,
      'num_classes': model.num_classes,
      'overrides': overrides,
      'image_size': weights.image_size and list(weights.image_size),
      'preprocessing': '',
      'class_names': [],
      **weights.described,
    },
  )


def save_huggingface(
  folder: epath.PathLike,
  params: Any,
  model: nn.Module,
  image_size: ImageSize,
  *,
  layout: str = '',
  **described: Any,
) -> None:
  """Writes a folder that `transformers` or `timm` loads.

  Args:
    folder: created if it does not exist; files of the same names are replaced.
    params: the model's parameters, a tree of arrays, blocks stacked or not;
      with or without a head.
    model: a `vit.ViT`, for the config.
    image_size: side or (height, width) that the position embeddings are for.
    layout: a key of `families.OTHERS`; '' for the first that has the model.
    **described: see `save_npz`. The class names become `id2label`. The loss,
      and operations that the library lacks, are kept for information only.

  Raises:
    ValueError: the layout is unknown or lacks the model, for the listed
      reasons; the number of names is not that of the classes; or the parameters
      do not fit the model or are not finite.
  """
  flat = inference.flatten(params)
  has_head = 'head/kernel' in flat
  layout = layout or families.layout_of(model, flat)
  families.check(layout, model, has_head=has_head)
  weights = _checked(params, model, image_size, described | {'layout': layout})
  huggingface.write(files.absolute(folder), weights)
