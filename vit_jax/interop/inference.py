"""Infers the model of given parameters, and describes models for files."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import numpy as np

from vit_jax import models
from vit_jax.interop import released
from vit_jax.models import variants, vit

# Attributes that change how a model is trained or computed, not its function.
_NOT_DESCRIBED = (
  'num_classes',
  'dropout_rate',
  'stochastic_depth',
  'head_bias',
  'dtype',
  'remat',
  'scan',
  'patch_outputs',
  'parent',
  'name',
)
_VIT_SIZES = (
  *('width', 'depth', 'heads', 'mlp_dim', 'patch_size', 'resnet_blocks'),
  *('resnet_width', 'representation_size'),
)
_BLOCK = 'Transformer/encoderblock_0/'
_AXIAL_UNIT = 'block1/unit1/'
_BIT_IMAGE_SIZE = (224, 224)  # A BiT takes any size.


def infer_model(
  arrays: Mapping[str, np.ndarray], image_size: tuple[int, int] | None = None
) -> tuple[nn.Module, tuple[int, int]]:
  """Infers the model of a file's arrays from their names and shapes.

  Three attributes change no shape and get their defaults: the GELU, the
  LayerNorms' epsilon, and whether a single position embedding is added once or
  before every block.

  Args:
    arrays: name -> array, by released names or ours.
    image_size: (height, width) in pixels; needed where the number of patches
      is no square.

  Returns:
    The model, and the image size that its position embeddings are for. A BiT
    takes any size; for it, the size is 224x224.

  Raises:
    ValueError: no model of this package has these arrays, or they do not show
      the image size.
  """
  flat = released.from_released(arrays)
  if 'head/bias' not in flat:
    raise ValueError(
      'These weights have no head, so the number of classes is unknown: name'
      ' the model and load them with new_head=True.'
    )
  (classes,) = _shape(flat, 'head/bias', 1)
  try:
    if 'gn_final/scale' in flat:
      model = models.build('BiT-R50x1', num_classes=classes, **_resnet(flat))
      return model, image_size or _BIT_IMAGE_SIZE
    if _AXIAL_UNIT + 'width_attention/qkv/kernel' in flat:
      return _axial_resnet(flat, classes, image_size)
    fields = _vit_fields(flat)
  except KeyError as error:
    named = sorted(flat.keys() - {'head/bias'})  # Callers may have added it.
    raise ValueError(
      'These are not the weights of a ViT, a hybrid or a ResNet of the paper:'
      f' {error} is missing among {", ".join(named[:8])}, ...'
    ) from None
  model = models.build('ViT-B/16', num_classes=classes, **fields)
  return model, image_size or _image_size(flat, model)


def sizes(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Infers a model's sizes from arrays by our names.

  Returns:
    Attributes of the model, such as `width` and `depth`; {} if the arrays are
    not those of a ViT, hybrid or BiT.
  """
  found = {}
  with contextlib.suppress(KeyError, ValueError):
    if 'gn_final/scale' in flat:
      found = _resnet(flat)
    else:
      fields = _vit_fields(flat)
      found = {key: fields[key] for key in _VIT_SIZES if key in fields}
    if 'head/bias' in flat:
      (found['num_classes'],) = _shape(flat, 'head/bias', 1)
  return found


def _vit_fields(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns the attributes of `vit.ViT`; KeyError if an array is missing."""

  def has(end):  # One block that lacks it is an error that comes later.
    return any(_block_of(name) and name.endswith(end) for name in flat)

  axial = any(name.startswith(_BLOCK + 'row/') for name in flat)
  block = _BLOCK + 'row/' if axial else _BLOCK
  attention = block + 'MultiHeadDotProductAttention_0/'
  width, heads, _ = _shape(flat, attention + 'query/kernel', 3)
  pooling = 'token' if released.CLS in flat else 'gap'
  if 'MAPHead_0/probe' in flat:
    pooling = 'map'
  position, site = _position(flat)
  fields = {
    'width': width,
    'heads': heads,
    'depth': len({m[1] for k in flat if (m := _block_of(k))}),
    'mlp_dim': _shape(flat, block + 'MlpBlock_0/Dense_0/bias', 1)[0],
    'patch_size': _shape(flat, 'embedding/kernel', 4)[:2],
    'pooling': pooling,
    'attention': 'axial' if axial else 'full',
    'position_embedding': position,
    'position_site': site,
    'norm_position': released.norm_position(flat),
    'parallel': not has('/LayerNorm_1/scale'),
    'qk_norm': has('/query_norm/scale'),
    'qkv_bias': has('/query/bias'),
    'norm_bias': has('/LayerNorm_0/bias'),
  }
  if 'pre_logits/bias' in flat:
    fields['representation_size'] = _shape(flat, 'pre_logits/bias', 1)[0]
  if 'conv_root/kernel' in flat:
    fields['resnet_blocks'] = _resnet_blocks(flat)
    fields['resnet_width'] = _resnet_width(flat)
  return fields


def _shape(
  flat: Mapping[str, np.ndarray], name: str, rank: int
) -> tuple[int, ...]:
  """Returns a shape; KeyError if missing, ValueError if of another rank."""
  shape = tuple(flat[name].shape)
  if len(shape) != rank or 0 in shape:
    raise ValueError(
      f'These are not the weights of a model of the paper: {name} has shape'
      f' {shape}, expected {rank} axes, none of them empty.'
    )
  return shape


def _block_of(name: str) -> re.Match | None:
  return re.match(r'Transformer/encoderblock_(\d+)/', name)


def _position(flat: Mapping[str, np.ndarray]) -> tuple[str, str]:
  """Returns `position_embedding` and `position_site`."""
  for name in flat:
    leaf = name.rpartition('/')[2]
    site = 'every_layer' if _block_of(name) else 'stem'
    if leaf == 'pos_embedding':
      return '1d', site
    if leaf == 'x_embedding':
      return '2d', site
    if leaf == 'relative_embedding':
      shared = _shape(flat, name, 3)[1] == 1
      return ('relative' if shared else 'relative_per_head'), 'stem'
  raise ValueError(
    'These weights have no position embedding: their shapes do not show whether'
    ' the model has none or a fixed one. Name the model.'
  )


def _axial_resnet(flat, classes, image_size):
  """Does `infer_model` for an AxialResNet, whose root halves images twice."""
  height, width = (
    _shape(flat, f'{_AXIAL_UNIT}{axis}_attention/relative_embedding', 2)
    for axis in ('height', 'width')
  )  # [2L - 1, 2K] each
  channels = _shape(flat, _AXIAL_UNIT + 'width_attention/qkv/kernel', 2)[0]
  model = models.build(
    'AxialResNet50',
    num_classes=classes,
    heads=2 * channels // width[1],
    **_resnet(flat),
  )
  size = (2 * (height[0] + 1), 2 * (width[0] + 1))
  return model, image_size or size


def _resnet(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
  return {'blocks': _resnet_blocks(flat), 'width_factor': _resnet_width(flat)}


def _resnet_blocks(flat: Mapping[str, np.ndarray]) -> tuple[int, ...]:
  units = {
    tuple(map(int, match.groups()))
    for name in flat
    if (match := re.match(r'block(\d{1,4})/unit(\d{1,4})/', name))
  }
  stages = max((stage for stage, _ in units), default=0)
  return tuple(
    sum(stage == number for stage, _ in units)
    for number in range(1, stages + 1)
  )


def _resnet_width(flat: Mapping[str, np.ndarray]) -> float:
  width = _shape(flat, 'conv_root/kernel', 4)[-1] / 64
  return int(width) if width.is_integer() else width


def _image_size(
  flat: Mapping[str, np.ndarray], model: vit.ViT
) -> tuple[int, int]:
  """Returns the image size of the position embeddings, in whole patches."""
  prefix = int(released.CLS in flat)
  grid, patches = None, 0
  lengths = {'x': 0, 'y': 0}  # Columns and rows, if each axis has a table.
  for name in flat:
    leaf = name.rpartition('/')[2]
    if leaf in ('x_embedding', 'y_embedding'):
      lengths[leaf[0]] = _shape(flat, name, 2)[0]
    elif leaf == 'pos_embedding':
      patches = _shape(flat, name, 3)[1] - prefix
    elif leaf == 'relative_embedding':
      length = (_shape(flat, name, 3)[0] + 1) // 2  # The table has 2L - 1 rows.
      if '/row/' in name:
        lengths['x'] = length
      elif '/column/' in name:
        lengths['y'] = length
      else:
        patches = length - prefix
  if all(lengths.values()):
    grid = (lengths['y'], lengths['x'])
  if grid is None:
    side = math.isqrt(max(patches, 0))
    grid = (side, side)
    if side == 0 or side**2 != patches:
      raise ValueError(
        f'{patches} patches do not form a square grid: give the image size.'
      )
  stride = 1
  if model.resnet_blocks is not None:
    # The root halves the image twice, each stage but the first once.
    stride = 4 * 2 ** max(0, len(model.resnet_blocks) - 1)
  return tuple(
    count * patch * stride
    for count, patch in zip(grid, model.patch_size, strict=True)
  )


def describe(model: nn.Module) -> tuple[str, dict[str, Any]]:
  """Returns a model's name and overrides, for `models.build`.

  Args:
    model: from `models.build`.

  Returns:
    The name that needs the fewest overrides, and the overrides, as JSON has
    them. Attributes that concern only training and computation are left out.
  """
  names = [
    name
    for family in variants.FAMILIES
    if family.module is type(model)
    for name in family.names
  ]
  if type(model) is vit.ViT and len(set(model.patch_size)) == 1:
    kind = 'Axial-ViT' if model.attention == 'axial' else 'ViT'
    names += [f'{kind}-{s}/{model.patch_size[0]}' for s in variants.SIZES]
  fields = [field.name for field in dataclasses.fields(model)]
  if isinstance(model, vit.ViT):  # Its sizes come first, for those who read.
    fields = dict.fromkeys((*_VIT_SIZES, *fields))
  best = None
  for name in names:
    named = models.build(name, num_classes=model.num_classes)
    overrides = {
      field: getattr(model, field)
      for field in fields
      if field not in _NOT_DESCRIBED
      and getattr(model, field) != getattr(named, field)
    }
    # `models.build` takes None as no override.
    if None in overrides.values():
      continue
    if best is None or len(overrides) < len(best[1]):
      best = (name, overrides)
  if best is None:
    raise ValueError(
      f'{model} is not one of the models {", ".join(models.names())}.'
    )
  name, overrides = best
  return name, {
    k: list(v) if isinstance(v, tuple) else v for k, v in overrides.items()
  }


def flatten(params: Any) -> dict[str, np.ndarray]:
  """Returns parameters, a tree or flat, as flat float32, blocks not stacked."""
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return released.unstack(
    {k: np.asarray(v, np.float32) for k, v in flat.items()}
  )


def channels(flat: Mapping[str, np.ndarray]) -> int:
  """Returns the number of image channels that the parameters are for."""
  for name in ('conv_root/kernel', 'embedding/kernel'):
    if name in flat and flat[name].ndim == 4:
      return flat[name].shape[2]
  return 3
