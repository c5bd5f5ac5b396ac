"""The features that a model's layers give to images: vectors, or patches.

A layer of tokens is pooled as the model pools: to the class token, to the mean
of the tokens, or by the attention of its MAP head. Feature maps become their
mean over the positions. What may follow a layer's name changes that:

  block_11/cls             the class token, however the model pools
  block_11/patches         all patches: rows and columns of vectors
  block_11/norm            the model's last norm, then pooled
  block_11/norm/patches    the model's last norm, then all patches

`features`, `stage_1` and so on, and `encoded`, which is after that norm, have
no `/norm`.

Axes: B images, L tokens, D width of the layer.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.models import mae, vit
from vit_jax.models.encoder import layer_norm, unstack_blocks
from vit_jax.models.model_options import options_of
from vit_jax.models.resnet import Classifier
from vit_jax.models.shared import normalize

# The input of the head.
DEFAULT = 'pre_logits'
# What may follow a layer's name.
_NORM, _CLS, PATCHES = '/norm', '/cls', '/patches'


class Tokens(NamedTuple):
  """The tokens of a layer, without registers and distillation token.

  Attributes:
    patches: float32 [B, rows, columns, D].
    cls: float32 [B, D], the class token; None if the layer has none.
  """

  patches: jax.Array
  cls: jax.Array | None


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


def check(model: nn.Module, layer: str, *, vectors: bool = False) -> None:
  """Raises ValueError if a model has no such layer; lists those that it has.

  Args:
    model: from `models.build`.
    layer: one of `names`, and what may follow it.
    vectors: whether the layer must give one vector per image, not patches.
  """
  name = layer.partition('/')[0]
  known = names(model)
  if name in known and name not in (DEFAULT, 'logits'):
    kinds = [''] if vectors else ['', PATCHES]
    if 'cls' in getattr(model, 'prefix', ()) and name != 'features':
      kinds.append(_CLS)
    norms = ('', _NORM) if name.startswith('block_') else ('',)
    known = [name + norm + kind for norm in norms for kind in kinds]
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
    layer: one of `names`, and what may follow it.

  Returns:
    float32 [B, D]; of patches [B, rows, columns, D].
  """
  name = layer.partition('/')[0]
  norm = layer.startswith(name + _NORM)
  if layer.endswith((_CLS, PATCHES)):
    [found] = tokens(model, params, images, [name], norm=norm)
    return found.cls if layer.endswith(_CLS) else found.patches
  masked_patch = _predicts_patches(model)
  masked_patch &= not isinstance(getattr(model, 'decoder', None), mae.Sizes)
  if masked_patch and name == DEFAULT:
    name = 'encoded'
  out = _outputs(model, params, images, [name])
  if name not in out:
    raise ValueError(
      f'{type(model).__name__} returns {", ".join(out)}, expected {name}:'
      ' [B, D].'
    )
  x = out[name]
  if norm:
    x = _normed(model, params, x)
  if masked_patch and x.ndim == 3:
    patches = math.prod(model.token_grid(images.shape[1:3]))
    x = x[:, -patches:].mean(axis=1)
  return _pooled(model, params, x).astype(jnp.float32)


def tokens(
  model: nn.Module,
  params: Any,
  images: jax.Array,
  names: int | Sequence[str],
  *,
  norm: bool = True,
) -> list[Tokens]:
  """Returns dense features of layers; call it under `jax.jit`.

  They are those of `get_intermediate_layers` in DINOv2's code, with reshape and
  return_class_token (facebookresearch/dinov2, models/vision_transformer.py):

      last_four = layers.tokens(model, params, images, 4)
      [inner] = layers.tokens(model, params, images, ['block_5'], norm=False)

  Args:
    model: from `models.build`.
    params: its parameters, stacked for `scan=True` or not.
    images: uint8 [B, height, width, channels].
    names: how many of the last blocks; or names of layers, see `names`, that
      have tokens or are feature maps.
    norm: whether the norm of tokens after the last block is applied to each
      block, too, so that the last one equals `encoded`. Models with
      norm_position='post' or final_norm='pooled' have no such norm, and their
      tokens stay as they are, as in timm: the norm after pooling has only seen
      means.

  Returns:
    The tokens of each layer, in the order of `names`.

  Raises:
    ValueError: a layer does not exist, or has no patches.
  """
  if isinstance(names, int):
    depth = getattr(model, 'depth', 0)
    names = [f'block_{i}' for i in range(depth - names, depth)]
  for name in names:
    check(model, name + PATCHES)
  out, found = _outputs(model, params, images, names), []
  for name in names:
    x = out[name]
    if norm and name.startswith('block_'):
      x = _normed(model, params, x)
    x, cls = x.astype(jnp.float32), None
    if x.ndim == 3:
      grid = model.token_grid(images.shape[1:3])
      cls = x[:, 0] if 'cls' in model.prefix else None
      x = x[:, -math.prod(grid) :].reshape(len(x), *grid, -1)
    found.append(Tokens(x, cls))
  return found


def _outputs(
  model: nn.Module, params: Any, images: jax.Array, names: Sequence[str]
) -> dict[str, jax.Array]:
  """Returns at least the outputs of layers, in the compute dtype."""
  inner = {_module_name(name): name for name in names if _module_name(name)}
  if inner and 'encoderblock' in params.get('Transformer', {}):
    # No single block of a scan can be captured.
    params, model = unstack_blocks(params), model.clone(scan=False)
  found = {}

  def keep(call, args, kwargs, context):
    out = call(*args, **kwargs)
    if context.method_name == '__call__' and context.module.name in inner:
      # A decoder's blocks come later.
      found.setdefault(inner[context.module.name], out)
    return out

  if inner:
    # The capture cannot take traced values out of nn.remat.
    model = model.clone(remat='none')
  with nn.intercept_methods(keep):
    logits, out = model.apply(
      {'params': params}, normalize(images), train=False
    )
  for name, x in found.items():
    # Blocks may have more rows.
    found[name] = x[:, : out['encoded'].shape[1]] if x.ndim == 3 else x
  return {'logits': logits, **out, **found}


def _normed(model: nn.Module, params: Any, x: jax.Array) -> jax.Array:
  """Applies the norm after the last block to tokens, if there is one."""
  own = params['Transformer'].get('encoder_norm')
  if own is None:
    return x
  return layer_norm(options_of(model), None).apply({'params': own}, x)


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
    layer: one of `names`, and what may follow it.

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
