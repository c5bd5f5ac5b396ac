"""Checks of a model's attributes, before anything is traced."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from vit_jax.models import (
  attention,
  axial_resnet,
  bit,
  dot_product,
  encoder,
  position,
  quantized,
  resnet,
  vit,
)

# What every model has: `build` and the config set these.
REQUIRED = ('num_classes', 'dtype', 'remat', 'head_bias')
_DTYPES = ('float32', 'bfloat16')
# Each limit is at least ten times beyond any published model. A file may claim
# any size, and to build its model takes time and memory. No flag raises the
# limits: a larger model needs other changes, too.
_LARGEST = {
  'depth': 1000,
  'heads': 2**10,
  'mlp_dim': 2**18,
  'num_classes': 2**24,
  'representation_size': 2**18,
  'width': 2**16,
}
_LARGEST_PATCH = 2**12  # Pixels of a side.
_LARGEST_WIDTH_FACTOR = 64
_MOST_STAGES = 16


def check(model: nn.Module) -> None:
  """Checks the attributes of a model, apart from what depends on the images.

  Args:
    model: not bound to parameters. A model of the user's is only checked for
      the attributes of `REQUIRED`, whose meanings all models share.

  Raises:
    ValueError: an attribute is not allowed. The message names the attribute,
      its value and the allowed values.
  """
  dtype = model.dtype
  if not isinstance(dtype, str):
    dtype = jnp.dtype(dtype).name
  _one_of('dtype', dtype, _DTYPES)
  _one_of('remat', model.remat, tuple(encoder.REMAT_POLICIES))
  _check_sizes(model, 'num_classes')
  if not _is_number(model.head_bias):
    raise ValueError(f'head_bias is {model.head_bias!r}, expected a number.')
  _check_rate(model, 'stochastic_depth')
  if isinstance(model, vit.ViT):
    _check_vit(model)
  elif isinstance(model, (bit.BiT, axial_resnet.AxialResNet)):
    _check_sizes(model, 'heads')
    _check_width('width_factor', model.width_factor)
    _check_blocks('blocks', model.blocks)
    if not model.blocks:
      raise ValueError('blocks is empty, expected at least one stage.')


def check_call(model: nn.Module, result: Any, variables: Any) -> None:
  """Checks what a model returns and holds: a user's may do otherwise.

  Args:
    model: the model.
    result: what its call returns, arrays or shapes.
    variables: its variables, arrays or shapes.

  Raises:
    ValueError: other code could not train, save or load such a model.
  """
  what = type(model).__name__
  if not (isinstance(result, tuple) and len(result) == 2):
    raise ValueError(
      f'{what} does not return (logits, out): out is a dictionary of named'
      ' values, such as pre_logits.'
    )
  if others := sorted(variables.keys() - {'params'}):
    raise ValueError(
      f'{what} has the variables {", ".join(others)}, which would not be'
      ' trained or saved: keep all in params, without batch statistics, for'
      ' example with GroupNorm or LayerNorm.'
    )
  layers = variables['params']
  predicts_patches = getattr(model, 'patch_outputs', None) is not None
  if not predicts_patches and {'kernel', 'bias'} - set(layers.get('head', ())):
    raise ValueError(
      f'{what} has the layers {", ".join(layers)}, expected one called head'
      " that makes the logits: nn.Dense(num_classes, name='head'), with a bias."
    )


def _check_vit(model: vit.ViT) -> None:
  _one_of('quantization', model.quantization, tuple(quantized.QUANTIZATIONS))
  patch_size = model.patch_size
  if (
    not isinstance(patch_size, tuple)
    or len(patch_size) != 2
    or not all(_is_size(side, _LARGEST_PATCH) for side in patch_size)
  ):
    raise ValueError(
      f'patch_size is {patch_size!r}, expected a side or (height, width), '
      f'each at least 1 and at most {_LARGEST_PATCH:,}.'
    )
  _check_sizes(
    model,
    'width',
    'depth',
    'heads',
    'mlp_dim',
    'representation_size',
  )
  _check_width('resnet_width', model.resnet_width)
  attention.head_width(model.width, model.heads)
  if model.resnet_blocks is not None:
    _check_blocks('resnet_blocks', model.resnet_blocks)
  _check_rate(model, 'dropout_rate')
  if not (_is_number(model.norm_epsilon) and 0 < model.norm_epsilon < 1):
    raise ValueError(
      f'norm_epsilon is {model.norm_epsilon!r}, expected 0 < epsilon < 1.'
    )
  if not (_is_number(model.position_stddev) and model.position_stddev > 0):
    raise ValueError(
      f'position_stddev is {model.position_stddev!r}, expected a number above'
      ' 0.'
    )
  for key, choices in (
    ('pooling', vit.POOLINGS),
    ('attention', encoder.ATTENTIONS),
    ('attention_implementation', tuple(dot_product.IMPLEMENTATIONS)),
    ('position_embedding', encoder.POSITION_EMBEDDINGS),
    ('position_site', encoder.POSITION_SITES),
    ('gelu', encoder.GELUS),
    ('norm_position', encoder.NORM_POSITIONS),
    *((key, (False, True)) for key in ('parallel', 'qk_norm')),
    *((key, (False, True)) for key in ('qkv_bias', 'norm_bias')),
  ):
    _one_of(key, getattr(model, key), choices)
  if model.attention == 'axial' and model.pooling == 'token':
    raise ValueError(
      'attention="axial" works on a grid, in which a class token has no place: '
      'set pooling to "gap" or "map".'
    )
  if model.parallel and model.norm_position == 'post':
    raise ValueError(
      'parallel=True means that attention and MLP read the same LayerNorm, but'
      ' norm_position="post" has none before them: choose one of the two.'
    )
  _check_position(model.position_embedding, model.position_site, model.width)


def _check_position(kind: str, site: str, width: int) -> None:
  if site != 'stem' and kind not in position.ADDED:
    raise ValueError(
      f'position_site={site!r} says where an embedding is added, but '
      f'position_embedding={kind!r} adds none: leave position_site at "stem".'
    )
  if site == 'every_layer' and kind == 'sincos2d':
    raise ValueError(
      'position_embedding="sincos2d" is fixed, so layers cannot learn their '
      'own: use position_site="every_layer_shared".'
    )
  position.check_width(kind, width)


def _check_blocks(key: str, blocks: tuple[int, ...]) -> None:
  most = _LARGEST['depth']
  if (
    not isinstance(blocks, tuple)
    or len(blocks) > _MOST_STAGES
    or not all(_is_size(units, most) for units in blocks)
  ):
    raise ValueError(
      f'{key} is {blocks!r:.80}, expected the number of units of each stage,'
      f' at least 1 and at most {most:,}, such as (3, 4, 6, 3).'
    )


def _check_width(key: str, factor: float) -> None:
  if not _is_number(factor) or not factor <= _LARGEST_WIDTH_FACTOR:
    raise ValueError(
      f'{key} is {factor!r}, expected a number of at most'
      f' {_LARGEST_WIDTH_FACTOR}.'
    )
  try:
    resnet.root_channels(factor)
  except ValueError as error:
    raise ValueError(f'{key} is {factor!r}: {error}') from None


def _check_sizes(model: nn.Module, *keys: str) -> None:
  for key in keys:
    value = getattr(model, key, None)  # A BiT has no heads.
    if value is not None and not _is_size(value, _LARGEST[key]):
      raise ValueError(
        f'{key} is {value!r:.80}, expected at least 1 and at most'
        f' {_LARGEST[key]:,}, as a whole number.'
      )


def _check_rate(model: nn.Module, key: str) -> None:
  rate = getattr(model, key, 0.0)  # A model of the user's may have no such key.
  if not (_is_number(rate) and 0 <= rate < 1):
    raise ValueError(f'{key} is {rate!r}, expected 0 <= rate < 1.')


def _is_size(value: object, most: int) -> bool:
  return type(value) is int and 1 <= value <= most


def _is_number(value: object) -> bool:
  return type(value) in (int, float)


def _one_of(key: str, value: Any, choices: tuple[Any, ...]) -> None:
  if value not in choices:
    raise ValueError(
      f'{key} is {value!r}, expected one of {", ".join(map(str, choices))}.'
    )
