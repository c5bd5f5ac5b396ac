"""Attention weights of every block, from the model's own forward pass.

Fast attention never writes its weights to memory. Here the model runs
unchanged, and the weights are recomputed from each block's queries and keys.

Axes: B images, L tokens (the class token first, if there is one), H heads.
"""

import functools
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import attention, unstack_blocks
from vit_jax.models.attention import MultiHeadDotProductAttention
from vit_jax.models.vit import ViT

# The most bytes of weights that `in_pieces` computes at a time.
_LIMIT = 2**29


def attention_weights(
  model: nn.Module, params: Any, images: jax.Array
) -> jax.Array:
  """Returns the softmax weights of every block (Eq. A6).

  Args:
    model: a ViT or hybrid from `models.build`, with any attention
      implementation. Scores of relative position embeddings are part of the
      softmax.
    params: its parameters, stacked for `scan=True` or not.
    images: [B, height, width, channels], float in [-1, 1].

  Returns:
    [depth, B, H, L, L], float32: the weights of each query token (second to
    last axis) over the key tokens (last axis), which sum to 1. The pooling
    attention of a model with pooling='map' is not included.

  Raises:
    ValueError: the model has no blocks with attention over all tokens.
  """
  return forward(model, params, images)[0]


def forward(
  model: nn.Module, params: Any, images: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns `attention_weights` and the logits [B, num_classes]."""
  check(model)
  if 'encoderblock' in params['Transformer']:
    params = unstack_blocks(params)
  # The capture cannot take traced values out of nn.scan or nn.remat.
  return _forward(model.clone(scan=False, remat='none'), params, images)


def in_pieces(
  model: nn.Module, params: Any, images: np.ndarray
) -> Iterator[jax.Array]:
  """Yields `attention_weights` of a few images at a time.

  For 128 images of 224 px, the weights of ViT-L/16 would take 7.6 GB. A piece
  has at most 512 MiB, or a single image.

  Args:
    model: see `attention_weights`.
    params: its parameters.
    images: [N, height, width, channels], float in [-1, 1].

  Yields:
    [depth, B, H, L, L]; the B of all pieces add up to N.
  """
  tokens = prefix_tokens(model) + np.prod(model.token_grid(images.shape[1:3]))
  image_bytes = int(model.depth * model.heads * tokens**2 * 4)
  step = max(1, _LIMIT // image_bytes)
  for start in range(0, len(images), step):
    yield attention_weights(model, params, images[start : start + step])


def prefix_tokens(model: nn.Module) -> int:
  """Returns the number of tokens before the patches: 1 for a class token.

  Raises:
    ValueError: see `check`.
  """
  check(model)
  return int(model.pooling == 'token')


def check(model: nn.Module) -> None:
  """Raises ValueError if the model's blocks don't attend over all tokens."""
  if not isinstance(model, ViT):
    raise ValueError(
      f'{type(model).__name__} has no Transformer blocks; attention can be'
      ' captured from ViTs and hybrids only.'
    )
  if model.attention != 'full':
    raise ValueError(
      f'attention={model.attention!r} has no weights between all tokens, only'
      " within rows and columns; attention='full' is required."
    )


@functools.partial(jax.jit, static_argnums=0)
def _forward(
  model: ViT, params: Any, images: jax.Array
) -> tuple[jax.Array, jax.Array]:
  found = []  # One [B, H, L, L] per block.
  projected = {}  # The current block's 'query', 'key' -> parts of [B, L, H, K].

  def keep(call, args, kwargs, context):
    out = call(*args, **kwargs)
    module = context.module
    if context.method_name != '__call__' or module.path[:1] != ('Transformer',):
      return out
    if isinstance(module.parent, MultiHeadDotProductAttention):
      # `lanes.attend` projects the tokens in several parts.
      projected.setdefault(module.name, []).append(out)
    elif isinstance(module, MultiHeadDotProductAttention):
      suffix = '_norm' * module.options.qk_norm
      query, key = (
        jnp.concatenate(projected[name + suffix], axis=1)[:, : module.tokens]
        for name in ('query', 'key')
      )
      relative = module.get_variable('params', 'relative_embedding', None)
      found.append(attention.attention_weights(query, key, relative))
      projected.clear()
    return out

  with nn.intercept_methods(keep):
    logits, _ = model.apply({'params': params}, images, train=False)
  return jnp.stack(found), logits
