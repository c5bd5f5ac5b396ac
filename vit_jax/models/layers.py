"""The features that a model's layers give to images: one vector per image.

A layer of tokens is pooled as the model pools: to the class token, to the mean
of the tokens, or by the attention of its MAP head. Feature maps become their
mean over the positions.

Axes: B images, L tokens, D width of the layer.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.models import mae, vit
from vit_jax.models.encoder import unstack_blocks
from vit_jax.models.model_options import options_of
from vit_jax.models.resnet import Classifier
from vit_jax.models.shared import normalize

# The input of the head.
DEFAULT = 'pre_logits'


def names(model: nn.Module) -> list[str]:
  """Returns the layers of a model, the default first, then by depth.

  These are `pre_logits`; `block_0` and so on, the outputs of a Transformer's
  blocks, or `stage_1` and so on, those of a ResNet's stages; `encoded`, after
  the last norm; in a hybrid `features`, the ResNet's output; and `logits`,
  unless the model predicts masked patches. A model of the user's has the first
  and the last.
  """
  if isinstance(model, vit.ViT):
    hybrid = ['features'] if model.resnet_blocks is not None else []
    inner = hybrid + [f'block_{i}' for i in range(model.depth)]
  elif isinstance(model, Classifier):
    inner = [f'stage_{i + 1}' for i in range(len(model.blocks))]
  else:
    return [DEFAULT, 'logits']
  logits = [] if _predicts_patches(model) else ['logits']
  return [DEFAULT, *inner, 'encoded', *logits]


def check(model: nn.Module, layer: str) -> None:
  """Raises ValueError if a model has no such layer; lists those that it has."""
  known = names(model)
  if layer not in known:
    raise ValueError(
      f'The model has no layer {layer!r}; choose one of {", ".join(known)}.'
    )


def represent(
  model: nn.Module, params: Any, images: jax.Array, layer: str = DEFAULT
) -> jax.Array:
  """Returns a layer's features of images; call it under `jax.jit`.

  A model that predicts masked patches trains neither its class token nor its
  pooling, so its features are means over the patches. Only the decoder of a
  masked autoencoder reads the class token, and trains it.

  Args:
    model: from `models.build`.
    params: its parameters, stacked for `scan=True` or not.
    images: uint8 [B, height, width, channels].
    layer: see `names`.

  Returns:
    float32 [B, D].
  """
  inner = _module_name(layer)
  if inner and 'encoderblock' in params.get('Transformer', {}):
    # No single block of a scan can be captured.
    params, model = unstack_blocks(params), model.clone(scan=False)
  found = []

  def keep(call, args, kwargs, context):
    out = call(*args, **kwargs)
    if context.method_name == '__call__' and context.module.name == inner:
      found.append(out)
    return out

  if inner:
    # The capture cannot take traced values out of nn.remat.
    model = model.clone(remat='none')
  with nn.intercept_methods(keep):
    logits, out = model.apply(
      {'params': params}, normalize(images), train=False
    )
  if layer == 'logits':
    return logits.astype(jnp.float32)
  masked_patch = _predicts_patches(model)
  masked_patch &= not isinstance(getattr(model, 'decoder', None), mae.Sizes)
  if masked_patch and layer == DEFAULT:
    layer = 'encoded'
  if not inner and layer not in out:
    raise ValueError(
      f'{type(model).__name__} returns {", ".join(out) or "nothing"} beside the'
      f' logits, expected {layer}: [B, D].'
    )
  # A decoder's blocks come later.
  x = found[0] if inner else out[layer]
  if x.ndim == 3:
    x = x[:, : out['encoded'].shape[1]]  # Blocks may have more rows.
  if masked_patch and x.ndim == 3:
    patches = math.prod(model.token_grid(images.shape[1:3]))
    x = x[:, -patches:].mean(axis=1)
  return _pooled(model, params, x).astype(jnp.float32)


def _predicts_patches(model: nn.Module) -> bool:
  return getattr(model, 'patch_outputs', None) is not None


def _module_name(layer: str) -> str:
  """Returns the name of the module whose output is a layer; '' for `out`'s."""
  if found := re.fullmatch(r'block_(\d+)', layer):
    return f'encoderblock_{found[1]}'
  if found := re.fullmatch(r'stage_(\d+)', layer):
    return f'block{found[1]}'
  return ''


def _pooled(model: nn.Module, params: Any, x: jax.Array) -> jax.Array:
  """Maps [B, L, D] or [B, height, width, D] to [B, D]."""
  if x.ndim == 2:
    return x
  if x.ndim == 4:
    return x.mean(axis=(1, 2))
  own = {'params': params.get('MAPHead_0')}
  head = vit.MAPHead(options_of(model))
  return vit.pool(model, x, lambda x: head.apply(own, x))


@functools.lru_cache(16)
def compiled(
  model: nn.Module, mesh: jax.sharding.Mesh, layer: str = DEFAULT
) -> Callable[[Any, jax.Array], jax.Array]:
  """Returns the jitted `represent`; the same function for equal arguments.

  Args:
    model: from `models.build`.
    mesh: the devices, which share the images.
    layer: see `names`.

  Returns:
    `(params, images) -> features`; every process gets all rows.

  Raises:
    ValueError: the model has no such layer.
  """
  check(model, layer)

  def features(params, images):
    with sharding.use_mesh(mesh):
      return represent(model, params, images, layer)

  return jax.jit(features, out_shardings=NamedSharding(mesh, P()))
