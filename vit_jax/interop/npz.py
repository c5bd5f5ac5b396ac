"""`.npz` files with the released files' names, and the `.json` beside them."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
from etils import epath

from vit_jax import models
from vit_jax.interop import arrays as arrays_lib
from vit_jax.interop import (
  catalog,
  inference,
  json_files,
  parameter_shapes,
  released,
  torch_names,
  weight_files,
)
from vit_jax.interop.weights import (
  ImageSize,
  Weights,
  check_class_names,
  pair,
  settings_of,
)
from vit_jax.models import position

_SIDECAR = {
  'model': json_files.TEXT,
  'num_classes': json_files.COUNT,
  'overrides': json_files.OBJECT,
  'image_size': json_files.optional(json_files.SIZE),
  'preprocessing': json_files.TEXT,
  'class_names': json_files.TEXTS,
}
# Files that are older than these keys lack them.
_OPTIONAL = {'decoding': json_files.DECODING, 'loss': json_files.TEXT}


def read(
  path: epath.Path,
  name: str = '',
  *,
  check: Callable[[Weights], Collection[str] | None] | None = None,
) -> Weights:
  """Reads a file.

  Args:
    path: ends with `.npz`.
    name: the file's name in the catalogue, if it has one.
    check: called before any values are read, with weights whose arrays are
      zeros that take no memory. May raise. It may return names of parameters to
      skip: they stay zeros, like arrays that are not parameters.

  Raises:
    ValueError: see `arrays.read_npz`; or `PATH.json` is damaged, or describes
      another model.
  """
  described = _read_sidecar(path)

  def weights_of(arrays):
    torch_names.check_layout(arrays, path, expected=False)
    params, dropped = released.parameters(arrays)
    params = released.from_released(params)
    if described is not None:
      _check_sizes(described.model, params, path)
      weights = described
    elif name in catalog.names():
      weights = _of_catalog(path, name, params)
    else:
      weights = Weights(origin=str(path), params={})
    return dataclasses.replace(weights, params=params, dropped=dropped)

  def unused(found):
    empty = {k: parameter_shapes.placeholder(v) for k, v in found.items()}
    weights = weights_of(empty)
    names = (check(weights) if check else None) or ()
    # A parameter is a view of its placeholder, whose address gives the name in
    # the file.
    left = {_address(v) for k, v in weights.params.items() if k in names}
    return {
      *weights.dropped,
      *(k for k, v in empty.items() if _address(v) in left),
    }

  return weights_of(arrays_lib.read_npz(path, check=unused))


def _address(array) -> int:
  return array.__array_interface__['data'][0]


def _check_sizes(model: nn.Module, params, path: epath.Path) -> None:
  """Raises ValueError if a file's `.json` describes another model."""
  wrong = [
    f'{key} is {getattr(model, key)}, but in the arrays {size}'
    for key, size in inference.sizes(params).items()
    if getattr(model, key, size) != size
  ]
  if wrong:
    raise ValueError(
      f'{sidecar_of(path)} describes another model than {path.name} holds:'
      f' {"; ".join(wrong)}. Remove the .json file, or write {path.name} again'
      ' with interop.save_npz.'
    )


def _of_catalog(path, name, params) -> Weights:
  entry = catalog.entry(name)
  hidden = params.get('pre_logits/bias')
  is_hidden = hidden is not None and hidden.ndim == 1
  model = entry.build(len(hidden) if is_hidden else None)
  return _described(
    path, model, pair(entry.image_size), class_names=entry.class_names()
  )


def _described(path, model, image_size, **others) -> Weights:
  return Weights(
    origin=str(path),
    params={},
    model=model,
    image_size=image_size,
    grid=image_size and position.grid_of(model, image_size),
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
  decoding: Mapping[str, Any] | None = None,
  loss: str = '',
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
    class_names: one for each logit.
    preprocessing: the operations before the model in evaluation.
    decoding: see `Weights`.
    loss: see `Weights`.

  Raises:
    ValueError: the path has another ending, the number of class names is not
      that of the classes, or the parameters do not fit the model or are not
      finite.
  """
  path = weight_files.absolute(path)
  if path.suffix != '.npz':
    raise ValueError(f'{path} must end with .npz.')
  check_class_names(class_names, model.num_classes)
  size = None if image_size is None else pair(image_size)
  name, overrides = inference.describe(model)
  flat = inference.flatten(params)
  parameter_shapes.check_params(flat, model, size)
  sidecar = sidecar_of(path)
  # If the write fails, no old sidecar may stay beside new weights.
  sidecar.unlink(missing_ok=True)
  arrays_lib.write_npz(path, released.to_released(flat))
  json_files.write(
    sidecar,
    {
      'model': name,
      'num_classes': model.num_classes,
      'overrides': overrides,
      'image_size': list(size) if size else None,
      'preprocessing': preprocessing or '',
      'class_names': list(class_names or ()),
      **({'decoding': dict(decoding)} if decoding else {}),
      **({'loss': loss} if loss else {}),
    },
  )


def sidecar_of(path: epath.Path) -> epath.Path:
  """Returns the path `weights.npz.json` for `weights.npz`."""
  return path.with_name(path.name + '.json')


def _read_sidecar(path: epath.Path) -> Weights | None:
  sidecar = sidecar_of(path)
  if not sidecar.exists():
    return None
  content = json_files.read(sidecar)
  if missing := sorted(_SIDECAR.keys() - content.keys()):
    raise ValueError(
      f'{sidecar} does not describe weights: it lacks {", ".join(missing)}.'
      f' Remove it, or write {path.name} again with interop.save_npz.'
    )
  content = {'decoding': {}, 'loss': ''} | content
  json_files.check(content, _SIDECAR | _OPTIONAL, sidecar)
  classes, names = content['num_classes'], content['class_names']
  try:
    check_class_names(names, classes)
    model = models.build(
      content['model'], **content['overrides'] | {'num_classes': classes}
    )
    size = content['image_size'] and pair(content['image_size'])
    return _described(
      path,
      model,
      size,
      class_names=tuple(names),
      preprocessing=content['preprocessing'],
      decoding=content['decoding'],
      loss=content['loss'],
    )
  except (ValueError, TypeError) as error:
    raise ValueError(
      f'{sidecar} describes no model: {error} Remove the .json file, or write'
      f' {path.name} again with interop.save_npz.'
    ) from error
