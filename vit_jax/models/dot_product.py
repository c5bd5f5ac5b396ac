"""Exact softmax attention, in versions for different devices (Eqs. A6, A7).

All versions compute the same function: the scores of each query with each key
over sqrt(K), their softmax with the row's maximum subtracted and sums in
float32, and the weighted mean of the values. Scores are the largest activation
of a Transformer, so they are rounded to the compute dtype. The kernels `splash`
and `cudnn` never store the scores.

Axes: B batch, L queries, T keys, H heads, K width of one head.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layout import row_major

# Width of a TPU's vector registers and matrix unit. An array's last dimension
# is padded to a multiple of it.
LANES = 128
# Up to this many tokens beyond a multiple of LANES are computed separately.
_FEW = 8
# `splash` takes up to _KEYS_AT_ONCE keys at once, else blocks of _BLOCK tokens.
_BLOCK, _KEYS_AT_ONCE = 512, 2048
# `cudnn` gets a multiple of this many rows, so that each head's rows start at
# an address that suits vector loads.
_CUDNN_ROWS = 8


def plain(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  relative_embedding: jax.Array | None = None,
) -> jax.Array:
  """Computes attention as the paper writes it; JAX differentiates it.

  Args:
    query: [B, L, H, K], any float dtype.
    key: [B, T, H, K], same dtype.
    value: [B, T, H, K], same dtype.
    relative_embedding: see `relative_scores`; None adds no relative scores.

  Returns:
    [B, L, H, K] in the inputs' dtype.
  """
  scores = jnp.einsum('bqhk,bthk->bhqt', query, key)  # [B, H, L, T]
  if relative_embedding is not None:
    scores += relative_scores(query, relative_embedding.astype(query.dtype))
  # The scale comes after the product because 1/sqrt(80), for ViT-H, is not
  # exact in bfloat16.
  scores = scores.astype(jnp.float32) * query.shape[-1] ** -0.5  # Eq. A6
  weights = jax.nn.softmax(scores).astype(value.dtype)
  return jnp.einsum('bhqt,bthk->bqhk', weights, value)  # [B, L, H, K]


def relative_scores(
  query: jax.Array, relative_embedding: jax.Array
) -> jax.Array:
  """Returns the scores of each query with each key's relative position (§D.4).

  Every offset p_q - p_k of two tokens, counted in raster order with the class
  token first, has an embedding that serves as a key. Its score is added to the
  content score before the softmax; values have no such term. 1/sqrt(K) scales
  the sum of both scores, as in Shaw et al. (arXiv:1803.02155); the paper leaves
  that open.

  Args:
    query: [B, L, H, K].
    relative_embedding: [2L-1, H, K], or [2L-1, 1, K] if the heads share it. Row
      p_q - p_k + L - 1 belongs to the offset p_q - p_k.

  Returns:
    [B, H, L, L] scores, before scaling.
  """
  batch, length, heads, width = query.shape
  table = jnp.broadcast_to(
    relative_embedding[::-1], (2 * length - 1, heads, width)
  )
  # Column c is for the offset p_q - p_k = L - 1 - c.
  scores = jnp.einsum('bqhk,chk->bhqc', query, table)  # [B, H, L, 2L-1]
  # Row q's scores start at column L-1-q. After one more column is added, the
  # flat array cut into rows of 2L-1 shifts each row by one column. This is
  # cheaper than to gather [L, L, K] embeddings.
  scores = jnp.pad(scores, [(0, 0), (0, 0), (0, 0), (0, 1)])
  scores = scores.reshape(batch, heads, -1)  # [B, H, L * 2L]
  scores = scores[..., length - 1 : -1].reshape(
    batch, heads, length, 2 * length - 1
  )
  return scores[..., :length]  # [B, H, L, L]


def cudnn(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  tokens: int | None = None,
) -> jax.Array:
  """Runs cuDNN's fused kernel, which never writes the scores to memory.

  It needs an NVIDIA GPU of compute capability 8.0 or later. In training it
  takes an even number of rows only, and copies of the arguments are slow. So
  `Encoder` appends rows to the tokens once, before its first block.

  Args:
    query: [B, L, H, K], bfloat16 or float16; K is a multiple of 8.
    key: same shape and dtype.
    value: same shape and dtype.
    tokens: how many of the L rows are tokens. The other rows come after them;
      no query attends to them. None means all rows.

  Returns:
    [B, L, H, K] in the inputs' dtype. Rows after the tokens have no meaning.
  """
  lengths = None
  if tokens not in (None, query.shape[1]):
    lengths = jnp.full(len(query), tokens, jnp.int32)
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    query_seq_lengths=lengths,
    key_value_seq_lengths=lengths,
    implementation='cudnn',
  )


def splash(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """Runs JAX's kernel for TPUs, which never writes the scores to memory.

  It takes `plain`'s query, key and value in float32 or bfloat16, on a TPU v4 or
  later. It suits long sequences, because it pads tokens and K to multiples of
  at least `LANES`. It rounds the query after scaling it by 1/sqrt(K).
  """
  # Imported here because it loads Pallas, which nothing else needs.
  from jax.experimental.pallas.ops.tpu import splash_attention as library

  length, heads, width = query.shape[1:]
  # Up to _KEYS_AT_ONCE keys fit the chip's own memory. More keys go block by
  # block. Their backward pass takes queries in blocks, too: the fused kernel
  # would add up one gradient of all queries for each block of keys.
  at_once = length <= _KEYS_AT_ONCE
  unit = LANES if at_once else _BLOCK
  padding = [(0, 0), (0, -length % unit), (0, 0), (0, -width % LANES)]
  query, key, value = (
    jnp.pad(x, padding).swapaxes(1, 2) for x in (query, key, value)
  )  # [B, H, L', K']
  padded = query.shape[2]
  block = max(n for n in range(LANES, _BLOCK + 1, LANES) if padded % n == 0)
  keys = padded if at_once else block
  kernel = library.make_splash_mha_single_device(
    library.MultiHeadMask([library.FullMask((padded, padded))] * heads),
    block_sizes=library.BlockSizes(
      block_q=block,
      block_kv=keys,
      block_kv_compute=block,
      block_q_dkv=block,
      block_kv_dkv=keys,
      block_kv_dkv_compute=block,
      block_q_dq=None if at_once else block,
      block_kv_dq=None if at_once else keys,
      use_fused_bwd_kernel=at_once,
    ),
  )
  segments = None
  if padded > length:
    # The padding is a separate segment, to which no token attends.
    segment = (jnp.arange(padded) >= length).astype(jnp.int32)
    segments = library.SegmentIds(q=segment, kv=segment)
  scale = width**-0.5
  out = jax.vmap(lambda q, k, v: kernel(q, k, v, segments))(
    (query.astype(jnp.float32) * scale).astype(query.dtype), key, value
  )
  return out.swapaxes(1, 2)[:, :length, :, :width]


def check(name: str, platform: str, kind: str, dtype: str, width: int) -> None:
  """Raises ValueError if an implementation does not run on these devices.

  Args:
    name: one of IMPLEMENTATIONS.
    platform: the devices' platform, such as 'tpu'.
    kind: the devices' kind, as JAX names it.
    dtype: dtype of query, key and value.
    width: K.
  """
  if name == 'splash' and (
    platform != 'tpu'
    or kind in ('TPU v2', 'TPU v3')
    or dtype not in ('float32', 'bfloat16')
  ):
    raise ValueError(
      "attention_implementation='splash' needs a TPU v4 or later, and dtype"
      f" 'float32' or 'bfloat16'; this is {kind!r} with dtype {dtype!r}. Use"
      " 'plain', or leave attention_implementation unset."
    )
  if name == 'cudnn':
    reason = unfit_for_cudnn(dtype, width)
    if platform != 'gpu':
      reason = f'this is {platform!r}, not a GPU'
    if reason:
      raise ValueError(
        "attention_implementation='cudnn' needs an NVIDIA GPU and heads that"
        f" its kernel takes, but {reason}. Use 'plain', or leave"
        ' attention_implementation unset.'
      )


def unfit_for_cudnn(dtype: str, width: int) -> str:
  """Returns why `cudnn` never takes such heads, or '' if it does.

  Args:
    dtype: dtype of query, key and value.
    width: K.
  """
  if dtype not in ('bfloat16', 'float16'):
    return f"the dtype is {dtype!r}, not 'bfloat16' or 'float16'"
  if width % 8 or width > 128:
    return f'the head width {width} is no multiple of 8 up to 128'
  return ''


@functools.cache
def why_cudnn_fails(dtype: str, width: int) -> str:
  """Returns why `cudnn` cannot train on this process's device, '' if it can.

  The kernel needs certain GPUs, drivers and versions of cuDNN and JAX. So it is
  tried on a few tokens, and compared with `plain`.

  Args:
    dtype: dtype of query, key and value.
    width: K.
  """
  rows, tokens = 2 * _CUDNN_ROWS, 2 * _CUDNN_ROWS - 3
  heads = jnp.asarray(
    np.random.default_rng(0).normal(size=(3, 1, rows, 1, width)), dtype
  )

  def loss(heads, attend):
    return (attend(*heads)[:, :tokens].astype(jnp.float32) ** 2).sum()

  def run(attend, heads):
    return jax.jit(jax.grad(loss), static_argnums=1)(heads, attend)

  try:
    found = run(functools.partial(cudnn, tokens=tokens), heads)
  except (RuntimeError, ValueError) as error:
    return str(error).partition('\n')[0]
  expected = run(plain, heads[:, :, :tokens]).astype(jnp.float32)
  found = found.astype(jnp.float32)
  error = jnp.abs(found[:, :, :tokens] - expected).max()
  # Gradients of kernels and biases are sums over all rows.
  if found[:, :, tokens:].any() or not error < 0.05 * jnp.abs(expected).max():
    return 'its gradients are not those of plain attention'
  return ''


def padded_length(name: str, tokens: int) -> int:
  """Returns how many rows an implementation wants for a number of tokens."""
  return tokens + (-tokens % _CUDNN_ROWS if name == 'cudnn' else 0)


def tokens_in_lanes(
  query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
  """Runs `lane_blocks` on all tokens together; takes `plain`'s arguments."""
  (out,) = lane_blocks([query], [key], [value])
  return out


# ---- The version for TPUs ----------------------------------------------------


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
  """Computes attention with the tokens along the lanes of a TPU's registers.

  Tokens are the last dimension, because the K = 64 or 80 numbers of a head fill
  only about half of a register. All arrays keep one order, so none is copied
  from one layout to another. The weights are divided by their sum only after
  the product with the values: a row of ones beside the values makes the same
  product yield that sum in float32. The backward pass computes the weights
  again from the scores.

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
  for value in values:
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


IMPLEMENTATIONS = {
  'plain': plain,
  'lanes': tokens_in_lanes,
  'splash': splash,
  'cudnn': cudnn,
}
