"""Attention with the tokens along the lanes of a TPU's registers.

It computes `attention.plain` in the order that the TPU compiler prefers for the
heads, and is the default on TPUs. By that compiler, a step of ViT-L/16 on 128
cores of v3 takes 8% longer with `plain`, and 7% longer with 128 images a core
if the order of the block's tokens is left to it. Forward-mode derivatives need
`plain`.

Axes: B batch, L queries, T keys, D width, H heads, K width of one head.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import layout

from vit_jax import sharding

# Width of a TPU's vector registers and matrix unit. An array's last dimension
# is padded to a multiple of it.
LANES = 128
# Up to this many tokens beyond a multiple of LANES are computed separately.
_FEW = 8


def attend(
  x: jax.Array,
  projections: Sequence[Callable[..., jax.Array]],
  out: Callable[[jax.Array], jax.Array],
  angles: jax.typing.ArrayLike | None = None,
) -> jax.Array:
  """Computes attention of all tokens to all tokens.

  Args:
    x: [B, L, D].
    projections: map [B, L, D], and angles, to queries, keys and values
      [B, L, H, K].
    out: maps [B, L, H, K] to [B, L, D].
    angles: of rotary position embeddings, [L, ...]; None if there are none.

  Returns:
    [B, L, D].
  """
  # Where a shard's batch fills the lanes (128 images), the compiler would else
  # put the batch there and copy the heads between the two layouts.
  in_order = sharding.per_shard(row_major, sharding.BATCH)
  splits = np.cumsum(block_sizes(x.shape[1]))[:-1]
  blocks = jnp.split(in_order(x), splits, axis=1)
  turns = [None] * len(blocks)
  if angles is not None:
    turns = jnp.split(angles, splits)
  heads = [list(map(project, blocks, turns)) for project in projections]
  attended = sharding.per_shard(
    lane_blocks, sharding.BATCH, None, sharding.TENSOR
  )(*heads)
  return in_order(jnp.concatenate([out(block) for block in attended], axis=1))


def row_major(x: jax.Array) -> jax.Array:
  """Makes the compiler keep an array, and its gradient, in row-major layout.

  The last dimension is then along the lanes. Otherwise the compiler chooses
  layouts by local rules, and copies between them.
  """
  return layout.with_layout_constraint(
    x, layout.Layout(major_to_minor=tuple(range(x.ndim)))
  )


def block_sizes(length: int) -> tuple[int, ...]:
  """Returns the sizes of the blocks to cut a sequence into for `lane_blocks`.

  ViT-H/14's 256 patches and class token are 257 tokens, which registers pad to
  384: a third of attention's time is lost (and 1,025 tokens become 1,152).

  Args:
    length: number of tokens, the class token first.

  Returns:
    (length,), or (few, a multiple of `LANES`).
  """
  few = length % LANES
  if 0 < few <= _FEW and few < length:
    return few, length - few
  return (length,)


def lane_blocks(
  queries: Sequence[jax.Array],
  keys: Sequence[jax.Array],
  values: Sequence[jax.Array],
) -> list[jax.Array]:
  """Computes attention with tokens as the last dimension.

  The K = 64 or 80 numbers of a head would fill only about half of a register.
  All arrays keep one order, so none is copied from one layout to another. The
  weights are divided by their sum only after the product with the values: a row
  of ones beside the values makes the same product yield that sum in float32.
  The backward pass computes the weights again from the scores.

  Args:
    queries: blocks [B, L_i, H, K] of a sequence, see `block_sizes`.
    keys: blocks [B, T_i, H, K], same dtype.
    values: blocks of the keys' shapes, same dtype.

  Returns:
    One array [B, L_i, H, K] per block of queries, in the inputs' dtype.
  """
  queries, keys, values = (
    [_pin_many(x.transpose(0, 2, 3, 1)) for x in blocks]
    for blocks in (queries, keys, values)
  )  # [B, H, K, L] each.
  return [
    _pin_many(
      (_attend if query.shape[-1] > _FEW else _attend_few)(
        query, tuple(keys), tuple(values)
      )
    ).transpose(0, 3, 1, 2)
    for query in queries
  ]


def _pin_many(x: jax.Array) -> jax.Array:
  """Applies `row_major` unless L is so small that most lanes would be empty."""
  return row_major(x) if x.shape[-1] > _FEW else x


def _attend_few(
  query: jax.Array, keys: Sequence[jax.Array], values: Sequence[jax.Array]
) -> jax.Array:
  """Computes `_attend` with the scores' keys along the lanes."""
  scores = jnp.concatenate(
    [jnp.einsum('bhkl,bhkt->bhlt', query, key) for key in keys], axis=-1
  )
  scores = scores.astype(_wide(query)) * query.shape[2] ** -0.5
  weights = jax.nn.softmax(scores).astype(query.dtype)  # [B, H, L, T]
  out, start = 0, 0
  for value in values:  # A joined copy of the values would take longer.
    part = weights[..., start : start + value.shape[-1]]
    out += jnp.einsum('bhlt,bhkt->bhkl', part, value)
    start += value.shape[-1]
  return out


@jax.custom_vjp
def _attend(
  query: jax.Array, keys: tuple[jax.Array, ...], values: tuple[jax.Array, ...]
) -> jax.Array:
  """Attends from [B, H, K, L] queries to blocks [B, H, K, T] of keys."""
  return _attend_forward(query, keys, values)[0]


def _attend_forward(query, keys, values):
  scores = [
    row_major(jnp.einsum('bhkt,bhkl->bhtl', key, query)) for key in keys
  ]  # [B, H, T, L] each, not yet scaled.
  maximum = functools.reduce(
    jnp.maximum, (block.max(axis=2, keepdims=True) for block in scores)
  )  # [B, H, 1, L]
  total = sum(
    jnp.einsum(
      'bhkt,bhtl->bhkl',
      _with_ones(value),
      _exp(block, maximum, query).astype(value.dtype),
      preferred_element_type=_wide(query),
    )
    for block, value in zip(scores, values, strict=True)
  )  # [B, H, K+1, L]
  inverse = 1 / total[:, :, -1:]  # [B, H, 1, L]
  out = total[:, :, :-1] * inverse  # [B, H, K, L]
  kept = (query, keys, values, scores, maximum, inverse, out)
  return out.astype(query.dtype), kept


def _attend_backward(kept, grad):
  query, keys, values, scores, maximum, inverse, out = kept
  wide = _wide(query)
  # The gradient of the weighted sum, before its division by the weights' sum.
  grad = (grad.astype(wide) * inverse).astype(query.dtype)
  # The part of the weights' gradients that all weights of a query share. The
  # gradients of a query's scores must add up to zero, because a remainder would
  # multiply the mean of the keys. So both parts come from the same rounded
  # numbers and are computed in float32.
  shared = (grad.astype(wide) * out).sum(axis=2, keepdims=True)  # [B, H, 1, L]
  scale = query.shape[2] ** -0.5
  query_grad, key_grads, value_grads = 0, [], []
  for key, value, block in zip(keys, values, scores, strict=True):
    weights = _exp(block, maximum, query)  # [B, H, T, L]
    value_grads.append(
      jnp.einsum('bhtl,bhkl->bhkt', weights.astype(query.dtype), grad)
    )
    weight_grads = jnp.einsum(
      'bhkt,bhkl->bhtl', value, grad, preferred_element_type=wide
    )
    score_grads = row_major(
      (weights * (weight_grads - shared)).astype(query.dtype)
    )
    key_grads.append(
      _scaled_product('bhkl,bhtl->bhkt', query, score_grads, scale)
    )
    query_grad += _scaled_product('bhkt,bhtl->bhkl', key, score_grads, scale)
  return query_grad, tuple(key_grads), tuple(value_grads)


_attend.defvjp(_attend_forward, _attend_backward)


def _wide(x: jax.Array) -> jnp.dtype:
  """Returns the dtype of sums: float32 or wider."""
  return jnp.promote_types(x.dtype, jnp.float32)


def _exp(scores: jax.Array, maximum: jax.Array, query: jax.Array) -> jax.Array:
  """Returns the weights before they are divided by their sum; at most 1."""
  wide = _wide(query)
  return jnp.exp(
    (scores.astype(wide) - maximum.astype(wide)) * query.shape[2] ** -0.5
  )


def _scaled_product(spec, left, right, scale):
  product = jnp.einsum(spec, left, right, preferred_element_type=_wide(left))
  return (product * scale).astype(left.dtype)


def _with_ones(value: jax.Array) -> jax.Array:
  """Appends a row of ones: [B, H, K, T] -> [B, H, K+1, T]."""
  ones = jnp.ones_like(value[:, :, :1])
  return jnp.concatenate([value, ones], axis=2)
