"""`.npz` files with the names of the released ones, and what lies beside."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
from etils import epath

from vit_jax import models, paths
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import catalog, fitting, inference, released
from vit_jax.interop.weights import ImageSize, Weights, pair, settings_of


def read(path: epath.Path, name: str = '', *, outline: bool = False) -> Weights:
  """Reads a file.

  Args:
    path: ends with `.npz`.
    name: of the file in the catalogue, if it has one.
    outline: reads only shapes; the values are zeros that take no memory.

  Raises:
    ValueError: see `arrays.read_npz`; or what lies beside it is damaged.
  """
  if outline:
    shapes = arrays_lib.npz_shapes(path)
    arrays = {k: fitting.placeholder(shape) for k, shape in shapes.items()}
  else:
    arrays = arrays_lib.read_npz(path)
  weights = _read_sidecar(path)
  if weights is None and name in catalog.names():
    entry = catalog.entry(name)
    model, size = entry.build(), pair(entry.image_size)
    weights = _described(path, model, size)
  if weights is None:
    weights = Weights(origin=str(path), params={})
  return dataclasses.replace(weights, params=released.from_released(arrays))


def _described(path, model, image_size, **others) -> Weights:
  return Weights(
    origin=str(path),
    params={},
    model=model,
    image_size=image_size,
    grid=image_size and model.token_grid(image_size),
    settings=settings_of(model),
    **others,
  )


def save_npz(
  path: epath.PathLike,
  params: Any,
  model: nn.Module,
  *,
  image_size: ImageSize | None = None,
  class_names: Sequence[str] | None = None,
  preprocessing: str | None = None,
) -> None:
  """Writes a `.npz` file with the names of the released ones, in float32.

  Beside it goes `PATH.json`, which says what the names and shapes don't: the
  model with its options, the image size, and what else is given here. Reading
  takes notice of it, but does well without.

  Args:
    path: ends with `.npz`; local or `gs://`. Replaced if it exists.
    params: of the model; a tree of arrays, blocks stacked or not.
    model: from `models.build`.
    image_size: side or (height, width) that the position embeddings are for.
    class_names: one for each logit.
    preprocessing: the operations before the model in evaluation.

  Raises:
    ValueError: another ending, another number of class names than classes, or
      values that are not finite.
  """
  path = paths.absolute(path)
  if path.suffix != '.npz':
    raise ValueError(f'{path} must end with .npz.')
  if class_names and len(class_names) != model.num_classes:
    raise ValueError(
      f'There are {len(class_names)} class names for {model.num_classes}'
      ' classes.'
    )
  name, overrides = inference.describe(model)
  flat = inference.flatten(params)
  arrays_lib.check_finite(flat, 'The model')
  sidecar = sidecar_of(path)
  # Never an old one beside new weights.
  sidecar.unlink(missing_ok=True)
  arrays_lib.write_npz(path, released.to_released(flat))
  arrays_lib.write_json(
    sidecar,
    {
      'model': name,
      'num_classes': model.num_classes,
      'overrides': overrides,
      'image_size': list(pair(image_size)) if image_size else None,
      'preprocessing': preprocessing or '',
      'class_names': list(class_names or ()),
    },
  )


def sidecar_of(path: epath.Path) -> epath.Path:
  """`weights.npz.json` of `weights.npz`."""
  return path.with_name(path.name + '.json')


def _read_sidecar(path: epath.Path) -> Weights | None:
  sidecar = sidecar_of(path)
  if not sidecar.exists():
    return None
  content = arrays_lib.read_json(sidecar)
  try:
    model = models.build(
      content['model'],
      num_classes=content['num_classes'],
      **content['overrides'],
    )
    size = content['image_size'] and pair(content['image_size'])
    return _described(
      path,
      model,
      size,
      class_names=tuple(content['class_names']),
      preprocessing=content['preprocessing'],
    )
  except (KeyError, TypeError) as error:
    raise ValueError(
      f'{sidecar} does not describe weights ({error!r}): remove it, or write'
      ' the file again with interop.save_npz.'
    ) from error
