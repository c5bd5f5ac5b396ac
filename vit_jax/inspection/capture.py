"""Attention weights of every block, from the model's own forward pass.

Fast attention never writes its weights to memory. Here the model runs
unchanged, and the weights are recomputed from each block's queries and keys.

Axes: B images, L tokens (the class token first, if there is one), H heads.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention, rotary, unstack_blocks
from vit_jax.models.attention import MultiHeadDotProductAttention
from vit_jax.models.vit import ViT


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
  # The capture cannot take traced values out of nn.scan or nn.remat.
  return _forward(model.clone(scan=False, remat='none'), params, images)


def prefix_tokens(model: nn.Module) -> int:
  """Returns the number of tokens before the patches.

  Raises:
    ValueError: see `check`.
  """
  check(model)
  return model.num_prefix_tokens


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
  if 'encoderblock' in params['Transformer']:
    params = unstack_blocks(params)
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
      if kind := module.options.rotary:
        learned = module.get_variable('params', 'rotary_frequencies', None)
        _, tokens, _, width = query.shape
        angles = rotary.angles(
          *(module.options, kwargs['grid'], tokens, tokens, width, learned)
        )
        query, key = (rotary.rotate(x, angles, kind) for x in (query, key))
      relative = module.get_variable('params', 'relative_embedding', None)
      found.append(attention.attention_weights(query, key, relative))
      projected.clear()
    return out

  with nn.intercept_methods(keep):
    logits, _ = model.apply({'params': params}, images, train=False)
  return jnp.stack(found), logits
