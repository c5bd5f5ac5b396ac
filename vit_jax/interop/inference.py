"""Infers the model of given parameters, and describes models for files."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import numpy as np

from vit_jax import models
from vit_jax.interop import layouts
from vit_jax.interop.transformers_layouts import CLS, DIST, POSITION
from vit_jax.models import position, variants, vit

_VIT_SIZES = (
  *('width', 'depth', 'heads', 'mlp_dim', 'patch_size', 'resnet_blocks'),
  *('resnet_width', 'representation_size'),
)
_Shapes = Mapping[str, tuple[int, ...]]  # By our names.
_BLOCK = 'Transformer/encoderblock_0/'
_FINAL_NORM, _POOLED_NORM = 'Transformer/encoder_norm/scale', 'fc_norm/scale'


def infer_model(
  arrays: Mapping[str, np.ndarray], image_size: tuple[int, int] | None = None
) -> tuple[nn.Module, tuple[int, int]]:
  """Infers the model of a file's arrays from their names and shapes.

  Those are the models of released files: ViTs with the paper's position
  embedding, hybrids and BiTs. Others are written with a description beside
  them. Attributes that change no shape get their defaults: the GELU, the norms'
  epsilon and rotary positions, unless these are learned. A norm after pooling
  is taken for MAE's, with pooling 'gap_patches' if there is a class token.

  Args:
    arrays: our name -> array, blocks not stacked.
    image_size: (height, width) in pixels; needed where the number of patches
      is no square.

  Returns:
    The model, of one class if the file has no head, and the image size that its
    position embeddings are for. A BiT takes any size; for it, the size is
    224x224.

  Raises:
    ValueError: no model of this package has these arrays, or they do not show
      the image size.
  """
  shapes = {name: array.shape for name, array in arrays.items()}
  classes = num_classes(arrays)
  try:
    if 'gn_final/scale' in shapes:
      blocks, width = _resnet(shapes)
      model = models.build(
        'BiT-R50x1', num_classes=classes, blocks=blocks, width_factor=width
      )
      return model, image_size or (224, 224)  # It takes any size.
    if POSITION not in shapes:
      raise KeyError(POSITION)
    # Released files without a row for the class token get zeros.
    found = fields(arrays, image_size) | {'class_position': True}
  except KeyError as error:
    raise ValueError(
      'These are not the weights of a ViT, a hybrid or a BiT with the released'
      f' names: {error} is missing among {", ".join(sorted(shapes)[:8])}, ...'
      ' Name the model, if they are the weights of another one of this package.'
    ) from None
  model = models.build('ViT-B/16', num_classes=classes, **found)
  return model, image_size or patches_size(arrays, model)


def num_classes(arrays: Mapping[str, np.ndarray]) -> int:
  """Returns the number of logits; 1 if there is no head."""
  return arrays['head/bias'].size if 'head/bias' in arrays else 1


def fields(
  arrays: Mapping[str, np.ndarray], image_size: tuple[int, int] | None = None
) -> dict[str, Any]:
  """Returns the attributes of a `vit.ViT` that arrays show.

  Args:
    arrays: our name -> array, blocks not stacked.
    image_size: (height, width) in pixels, if known.

  Raises:
    KeyError: an array is missing.
  """
  shapes = {name: array.shape for name, array in arrays.items()}

  def has(end):  # One block that lacks it is an error that comes later.
    return any(_block_of(name) and name.endswith(end) for name in shapes)

  rms = has('/RMSNorm_0/scale')
  attention = _BLOCK + 'MultiHeadDotProductAttention_0/'
  width, heads, _ = shapes[attention + 'query/kernel']
  pooled = _POOLED_NORM in shapes
  pooling = 'gap_patches' if pooled else 'token'
  pooling = pooling if CLS in shapes else 'gap'
  if shapes.get('head/kernel', (width,))[0] == 2 * width:
    pooling = 'token_gap'
  found = {
    'width': width,
    'heads': heads,
    'depth': len({m[1] for k in shapes if (m := _block_of(k))}),
    'mlp_dim': shapes[_BLOCK + 'MlpBlock_0/Dense_0/bias'][0],
    'patch_size': shapes['embedding/kernel'][:2],
    'pooling': 'map' if 'MAPHead_0/probe' in shapes else pooling,
    'registers': shapes.get('registers', (1, 0))[1],
    'distillation_token': DIST in shapes,
    'final_norm': 'pooled' if pooled else 'tokens',
    'norm_position': 'pre' if pooled or _FINAL_NORM in shapes else 'post',
    'parallel': not has('Norm_1/scale'),
    'qk_norm': has('/query_norm/scale'),
    'qkv_bias': has('/query/bias'),
    'key_bias': has('/key/bias') or not has('/query/bias'),
    'patch_bias': 'embedding/bias' in shapes,
    'embedding_norm': 'Transformer/embedding_norm/scale' in shapes,
    'class_position': _class_position(shapes, image_size),
    'norm_bias': rms or has('/LayerNorm_0/bias'),
    'norm': 'rms' if rms else 'layer',
    'mlp': 'swiglu' if has('/gate/kernel') else 'gelu',
    # Loaded values replace the initial one.
    'layer_scale': 1e-4 if has('/layer_scale_0') else None,
    'rotary': 'mixed' if has('/rotary_frequencies') else None,
  }
  if 'pre_logits/bias' in shapes:
    found['representation_size'] = shapes['pre_logits/bias'][0]
  if 'conv_root/kernel' in shapes:
    found['resnet_blocks'], found['resnet_width'] = _resnet(shapes)
  return found


def _class_position(
  shapes: _Shapes, image_size: tuple[int, int] | None
) -> bool:
  """Returns whether the position embeddings have rows before the patches'."""
  rows = shapes.get(POSITION, (1, 0))[1]
  if not {CLS, DIST} & shapes.keys():
    return True
  if image_size and 'conv_root/kernel' not in shapes:
    patch = shapes['embedding/kernel'][:2]
    return rows != math.prod(position.token_grid(image_size, patch))
  # Two squares differ by neither 1 nor 2.
  return math.isqrt(rows) ** 2 != rows


def _block_of(name: str) -> re.Match | None:
  return re.match(r'Transformer/encoderblock_(\d+)/', name)


def _resnet(shapes: _Shapes) -> tuple[tuple[int, ...], float]:
  """Returns the number of units of each stage, and the width factor."""
  units = re.findall(r'block(\d{1,4})/(unit\d{1,4})/', ' '.join(shapes))
  stages = sorted(int(stage) for stage, _ in {*units})
  counts = tuple(stages.count(n + 1) for n in range(max(stages, default=0)))
  width = shapes['conv_root/kernel'][-1] / 64
  return counts, int(width) if width.is_integer() else width


def patches_size(
  arrays: Mapping[str, np.ndarray], model: vit.ViT
) -> tuple[int, int]:
  """Returns the image size of the position embeddings, in whole patches.

  Raises:
    ValueError: the patches form no square grid.
  """
  prefix = sum(name in arrays for name in (CLS, DIST))
  rows = arrays[POSITION].shape[1]
  patches = rows - prefix * model.class_position
  side = math.isqrt(max(0, patches))
  if side == 0 or side**2 != patches:
    raise ValueError(
      f'{patches} patches do not form a square grid: give the image size.'
    )
  stride = 1
  if model.resnet_blocks is not None:
    # The root halves the image twice, each stage but the first once.
    stride = 4 * 2 ** max(0, len(model.resnet_blocks) - 1)
  height, width = model.patch_size
  return side * height * stride, side * width * stride


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
      if field not in layouts.NOT_DESCRIBED
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


def title(model: nn.Module) -> str:
  """Returns a model's name, and the options in which it differs from that."""
  name, overrides = describe(model)
  options = ', '.join(f'{k}={v}' for k, v in overrides.items())
  return f'{name} with {options}' if options else name


def flatten(params: Any) -> dict[str, np.ndarray]:
  """Returns parameters, a tree or flat, as flat float32, blocks not stacked."""
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return layouts.unstack(
    {k: np.asarray(v, np.float32) for k, v in flat.items()}
  )


def channels(flat: Mapping[str, np.ndarray]) -> int:
  """Returns the number of image channels that the parameters are for."""
  for name in ('conv_root/kernel', 'embedding/kernel'):
    if name in flat and flat[name].ndim == 4:
      return flat[name].shape[2]
  return 3
