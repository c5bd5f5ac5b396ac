"""Loads a trained model of any kind, and finds the images that it sees.

Commands that read a model call `define_flags`, and `load` with `arguments()`.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from absl import flags
from etils import epath

from vit_jax import interop
from vit_jax.data import ops
from vit_jax.data.sources import listing
from vit_jax.interop import inference, sources, weight_files
from vit_jax.models import vit
from vit_jax.runtime import command_line

# The flags are those of the command that defines them.
flags.disclaim_key_flags()

# With one of these overrides, a model's name no longer gives its size.
_SIZES = {
  *('width', 'depth', 'heads', 'mlp_dim', 'patch_size'),
  *('resnet_blocks', 'resnet_width', 'blocks', 'width_factor'),
}


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model with its weights.

  Attributes:
    origin: where the weights come from, for messages.
    name: the model's name, for titles.
    model: the module from `models.build`.
    params: its parameters.
    image_size: (height, width) of its images in pixels.
    preprocess: maps an image's bytes to uint8 [height, width, channels].
    notes: remarks on the weights, to print.
    class_names: one for each logit; () if unknown.
    loss: the loss that the head was trained with; '' if unknown.
    has_head: whether the logits are those of the checkpoint's head. Otherwise
      the head is new, and its logits mean nothing.
  """

  origin: str
  name: str
  model: nn.Module
  params: Any
  image_size: tuple[int, int]
  preprocess: ops.Preprocess
  notes: tuple[str, ...] = ()
  class_names: tuple[str, ...] = ()
  loss: str = ''
  has_head: bool = False


def define_flags() -> None:
  """Defines --checkpoint and the flags of `arguments`."""
  flags.DEFINE_string(
    'checkpoint',
    None,
    'Weights of a trained model: a path, or a released name.',
  )
  flags.DEFINE_string(
    'image_size',
    None,
    'Image size in pixels, as 384 or HEIGHTxWIDTH; by default the'
    " checkpoint's. Position embeddings are resized to it.",
  )
  flags.DEFINE_string(
    'preprocess',
    None,
    'Operations on each image, as in vit_jax/data/ops; by default those of the'
    " checkpoint's evaluation, or resize if it names none.",
  )
  flags.DEFINE_integer(
    'max_pixels',
    ops.MAX_PIXELS,
    'Most pixels that an image may have; a larger one counts as unreadable.',
    lower_bound=1,
  )


def arguments() -> dict[str, Any]:
  """Returns the flags' values, without --checkpoint, as arguments of `load`."""
  values = flags.FLAGS
  return dict(
    image_size=command_line.parse_size('image_size', values.image_size),
    preprocess=values.preprocess,
    max_pixels=values.max_pixels,
  )


def load(
  checkpoint: str,
  *,
  config: Mapping[str, Any] | None = None,
  image_size: tuple[int, int] | None = None,
  preprocess: str | None = None,
  max_pixels: int = ops.MAX_PIXELS,
) -> Loaded:
  """Reads weights of any kind and finds out which model they belong to.

  The weights need no head. With `config`, a head is left out, because the
  config's classes may not be the checkpoint's.

  Args:
    checkpoint: see `interop.read`.
    config: a run's config, whose model, image size and first evaluation's
      preprocessing are used. If None, they come from the checkpoint, or else
      follow from its arrays.
    image_size: (height, width) in pixels that replaces the config's or
      checkpoint's; position embeddings are resized to it.
    preprocess: operations, see `ops.parse`, that replace the config's or
      checkpoint's. If all have none, images are resized.
    max_pixels: the most pixels of an image, see `ops.parse`.

  Raises:
    ValueError: there are no weights, or they do not fit the model.
  """
  if config is not None and 'model' not in config:
    raise ValueError(
      f'--config has several stages, expected a single run: its keys are'
      f' {list(config)}.'
    )

  weights = interop.read(checkpoint)
  model, size = _model_and_size(weights, config, image_size)
  has_head = config is None and 'head/bias' in weights.params
  params, report = interop.fit_weights(
    weights, model, size, new_head=not has_head
  )
  recorded = [weights.preprocessing]
  if config is not None:
    recorded = [e.get('preprocess') for e in config['evals'].values()]
  operations = next(filter(None, [preprocess, *recorded]), 'resize')
  return Loaded(
    origin=weights.origin,
    name=title(model),
    model=model,
    params=params,
    image_size=size,
    preprocess=prepared(weights, operations, size, max_pixels),
    notes=report.notes,
    class_names=weights.class_names if has_head else (),
    loss=weights.loss,
    has_head=has_head,
  )


def prepared(
  weights: interop.Weights,
  operations: str,
  image_size: tuple[int, int],
  max_pixels: int = ops.MAX_PIXELS,
) -> ops.Preprocess:
  """Parses operations for images of a model.

  Raises:
    ValueError: they are no operations, or they give images of another size.
      Those that a checkpoint records may name the size of its own images.
  """
  # Twice as large, so that every crop fits.
  height, width = image_size
  channels = weights.channels or inference.channels(weights.params)
  image = np.zeros((2 * height, 2 * width, channels), np.uint8)
  try:
    preprocess = ops.parse(
      operations,
      image_size=image_size,
      channels=channels,
      # Photographs may carry an orientation in their EXIF data.
      upright=weights.decoding.get('upright', True),
      jpeg_dct=weights.decoding.get('jpeg_dct', 'fast'),
      max_pixels=max_pixels,
    )
    preprocess(image, np.random.default_rng(0))
  except ValueError as error:
    raise ValueError(
      f'{weights.origin}: {error}. Choose operations for this size, such as'
      " preprocess='resize', or another image_size."
    ) from error
  return preprocess


def title(model: nn.Module) -> str:
  """Returns a model's name, and the sizes in which it differs from that."""
  name, overrides = inference.describe(model)
  sizes = [
    f'{k}={v}'
    for k, v in overrides.items()
    if k in _SIZES or not hasattr(vit.ViT, k)  # That of a user's own model.
  ]
  return f'{name} with {", ".join(sizes)}' if sizes else name


def _model_and_size(
  weights: interop.Weights,
  config: Mapping[str, Any] | None,
  image_size: tuple[int, int] | None,
) -> tuple[nn.Module, tuple[int, int]]:
  """Returns the model and its image size."""
  if config is not None:
    model = sources.model_of_run({**config, 'num_classes': 1})
    return model, image_size or tuple(config['image_size'])
  if weights.model is not None:
    size = image_size or weights.image_size
    return weights.model, size or sources.size_of_table(weights)
  arrays = {'head/bias': np.zeros(1), **weights.params}
  # A table that is no square shows no size: it must be of the size asked for.
  inferred, size = interop.infer_model(arrays, weights.image_size or image_size)
  return inferred, image_size or size


def find_images(words: Sequence[str]) -> list[epath.Path]:
  """Lists image files.

  Args:
    words: paths of files and folders. Files may have any name. Folders and
      their subfolders are searched for names with `listing.SUFFIXES`; hidden
      files and folders are left out.

  Returns:
    Absolute paths without duplicates; the files of a folder are sorted.

  Raises:
    ValueError: a path does not exist, or a folder has no images.
  """
  found = []
  for word in words:
    path = weight_files.absolute(word)
    if not path.is_dir():
      found.append(weight_files.existing_file(path))
      continue
    inside = sorted(
      path / folder / name
      for folder, names in listing.walk(os.fspath(path))
      for name in names
      if name.lower().endswith(listing.SUFFIXES)
    )
    if not inside:
      raise ValueError(
        f'{path} holds no images; their suffixes are'
        f' {", ".join(listing.SUFFIXES)}.'
      )
    found += inside
  return list(dict.fromkeys(found))


def choose(
  paths: Sequence[epath.Path], count: int, seed: int
) -> list[epath.Path]:
  """Returns `count` paths in random order, or all if there are fewer."""
  order = np.random.default_rng(seed).permutation(len(paths))
  return [paths[i] for i in order[:count]]


def read_images(
  paths: Sequence[epath.Path],
  preprocess: ops.Preprocess,
  problems: dict[epath.Path, str] | None = None,
) -> np.ndarray:
  """Reads images as evaluations do.

  Args:
    paths: the files.
    preprocess: see `Loaded`.
    problems: gets the path and the problem of each unreadable file, which is
      left out. None does not allow such files.

  Returns:
    uint8 [N, height, width, channels].

  Raises:
    ValueError: a file is not an image, and `problems` is None or no file is.
  """
  rng = np.random.default_rng(0)
  images = []
  for path in paths:
    try:
      images.append(
        preprocess(weight_files.existing_file(path).read_bytes(), rng)
      )
    except (ValueError, OSError) as error:
      if problems is None:
        raise ValueError(f'{path}: {error}') from error
      problems[path] = str(error)
  if not images:
    raise ValueError(
      f'None of the {len(paths)} images can be read, such as'
      f' {paths[0]}: {problems[paths[0]]}'
    )
  return np.stack(images)
