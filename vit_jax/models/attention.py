"""Multi-head attention (arXiv:2010.11929, Appendix A) and its ablations.

`plain` is the paper's attention, with the scores in memory. `cudnn` and
`lanes.attend` compute the same function faster on GPUs and on TPUs. Scores are
the largest activation of a Transformer, so they are rounded to the compute
dtype; softmax and its sums are float32.

Axes: B batch, L queries, T keys, D width, H heads, K width of one head.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.models import lanes, rotary
from vit_jax.models.model_options import Options

# `cudnn` gets a multiple of this many rows, so that each head's rows start at
# an address that suits vector loads.
_CUDNN_ROWS = 8


def head_width(width: int, heads: int) -> int:
  """Returns K = `width` / `heads`; ValueError if that is not an integer."""
  if width % heads:
    raise ValueError(
      f'width {width} is not a multiple of heads {heads}: each head takes an '
      'equal slice of the width; change one of the two.'
    )
  return width // heads


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
  weights = attention_weights(query, key, relative_embedding)
  # [B, L, H, K]
  return jnp.einsum('bhqt,bthk->bqhk', weights.astype(value.dtype), value)


def attention_weights(
  query: jax.Array,
  key: jax.Array,
  relative_embedding: jax.Array | None = None,
) -> jax.Array:
  """Returns the softmax weights [B, H, L, T], float32; see `plain`."""
  scores = jnp.einsum('bqhk,bthk->bhqt', query, key)  # [B, H, L, T]
  if relative_embedding is not None:
    scores += relative_scores(query, relative_embedding.astype(query.dtype))
  # The scale comes after the product because 1/sqrt(80), for ViT-H, is not
  # exact in bfloat16.
  scores = scores.astype(jnp.float32) * query.shape[-1] ** -0.5  # Eq. A6
  return jax.nn.softmax(scores)


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


def split_axis(x: jax.Array, grid: tuple[int, int], axis: str) -> jax.Array:
  """Makes each row, or each column, of a token grid a separate example.

  Args:
    x: [B, rows * columns, ...].
    grid: (rows, columns).
    axis: 'row' keeps the tokens of a row together, 'column' those of a column.

  Returns:
    [B * rows, columns, ...] or [B * columns, rows, ...].
  """
  rows, columns = grid
  x = x.reshape(-1, rows, columns, *x.shape[2:])  # [B, rows, columns, ...]
  if axis == 'column':
    x = x.swapaxes(1, 2)  # [B, columns, rows, ...]
  return x.reshape(-1, *x.shape[2:])


def merge_axis(x: jax.Array, grid: tuple[int, int], axis: str) -> jax.Array:
  """Inverts `split_axis`."""
  rows, columns = grid
  if axis == 'column':
    x = x.reshape(-1, columns, rows, *x.shape[2:])  # [B, columns, rows, ...]
    x = x.swapaxes(1, 2)
  return x.reshape(-1, rows * columns, *x.shape[-2:])  # [B, L, H, K]


# ---- The version for GPUs ----------------------------------------------------


def cudnn(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  tokens: int | None = None,
) -> jax.Array:
  """Runs cuDNN's fused kernel, which never writes the scores to memory.

  It needs an NVIDIA GPU of compute capability 8.0 or later. In training it
  takes an even number of rows only, and copies of the arguments are slow. So
  `Encoder` appends rows to the tokens once, before its first block. With a
  kernel so used, a prototype's step of ViT-B/16 took 82 instead of 102 ms on
  an H100.

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


def padded_length(implementation: str, tokens: int) -> int:
  """Returns how many rows an implementation wants for a number of tokens."""
  return tokens + (-tokens % _CUDNN_ROWS if implementation == 'cudnn' else 0)


@functools.cache
def why_not_cudnn(dtype: str, width: int, *, here: bool) -> str:
  """Returns why `cudnn` cannot train with such heads, '' if it can.

  Args:
    dtype: dtype of query, key and value.
    width: K.
    here: whether to compile the kernel for this process's device. It needs
      certain GPUs, drivers and versions of cuDNN and JAX.
  """
  if dtype not in ('bfloat16', 'float16'):
    return f"the dtype is {dtype!r}, not 'bfloat16' or 'float16'"
  if width % 8 or width > 128:
    return f'the head width {width} is no multiple of 8 up to 128'
  if not here:
    return ''

  def loss(heads):
    return cudnn(*heads, tokens=_CUDNN_ROWS - 3).astype(jnp.float32).sum()

  heads = jax.ShapeDtypeStruct((3, 1, _CUDNN_ROWS, 1, width), dtype)
  try:
    jax.jit(jax.grad(loss)).lower(heads).compile()
  except (RuntimeError, ValueError) as error:
    return str(error).partition('\n')[0]
  return ''


def check(implementation: str, platform: str, dtype: str, width: int) -> None:
  """Raises ValueError if an implementation does not run on these devices.

  Args:
    implementation: 'plain', 'lanes' or 'cudnn'.
    platform: the devices' platform, such as 'tpu'.
    dtype: dtype of query, key and value.
    width: K.
  """
  if implementation != 'cudnn':
    return
  reason = why_not_cudnn(dtype, width, here=False)
  if platform != 'gpu':
    reason = f'this is {platform!r}, not a GPU'
  if reason:
    raise ValueError(
      "attention_implementation='cudnn' needs an NVIDIA GPU and heads that"
      f" its kernel takes, but {reason}. Use 'plain', or leave"
      ' attention_implementation unset.'
    )


# ---- The module --------------------------------------------------------------


def norm(options: Options, name: str, *, bias: bool = False) -> nn.Module:
  """Returns the norm of `options`, a submodule of the calling module.

  Args:
    options: see `Options`.
    name: the submodule's name.
    bias: whether a LayerNorm has a bias. RMSNorm (arXiv:1910.07467) has none.
  """
  kind = functools.partial(nn.LayerNorm, use_bias=bias)
  if options.norm == 'rms':
    kind = nn.RMSNorm
  return kind(epsilon=options.norm_epsilon, dtype=options.dtype, name=name)


class MultiHeadDotProductAttention(nn.Module):
  """Projections to H heads, attention in each, projection back (Eqs. A5-A8).

  Attributes:
    options: see `Options`. Another axis than 'all', a relative embedding or
      `attended` always uses the plain implementation. All heads share the
      scales [K] of `qk_norm`.
    axis: which tokens attend to each other: 'all', or with 'row' or 'column'
      only those of the same row or column of the grid (§D.6).
    tokens: how many of the L rows are tokens, for 'cudnn'; None means all.
  """

  options: Options
  axis: str = 'all'
  tokens: int | None = None

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    attended: jax.Array | None = None,
    grid: tuple[int, int] | None = None,
  ) -> jax.Array:
    """Computes attention.

    Args:
      x: [B, L, D], the tokens that give the queries.
      attended: [B, T, D], the tokens that give keys and values; None means `x`.
      grid: (rows, columns) of the patches; unused if the axis is 'all' and
        there is no `rotary`.

    Returns:
      [B, L, D].

    Raises:
      ValueError: H does not divide D.
    """
    options, width = self.options, x.shape[-1]
    # DenseGeneral initialises the flattened [D, D] matrix, so both fans of
    # Xavier's rule are D, whatever the number of heads.
    dense = functools.partial(
      nn.DenseGeneral,
      kernel_init=nn.initializers.xavier_uniform(),
      dtype=options.dtype,
    )
    per_head = sharding.BATCH, None, sharding.TENSOR

    def projection(name):  # Of [B, L, D] to [B, L, H, K].
      shape = options.heads, head_width(width, options.heads)
      bias = options.qkv_bias and (options.key_bias or name != 'key')
      layers = [dense(shape, use_bias=bias, name=name)]
      if options.qk_norm and name != 'value':
        layers.append(norm(options, f'{name}_norm'))

      def project(x, angles):
        x = functools.reduce(lambda x, layer: layer(x), layers, x)
        if angles is not None and name != 'value':
          x = rotary.rotate(x, angles, options.rotary)
        return sharding.constrain(x, *per_head)

      return project

    projections = [projection(name) for name in ('query', 'key', 'value')]
    out = dense(width, axis=(-2, -1), name='out')
    implementation = options.attention_implementation
    if attended is not None or self.axis != 'all' or options.relative:
      implementation = 'plain'
    angles = self._angles(x, grid) if options.rotary else None
    if implementation == 'lanes':
      return lanes.attend(x, projections, out, angles)

    others = x if attended is None else attended
    query, key, value = (
      project(tokens, angles)
      for project, tokens in zip(projections, (x, others, others), strict=True)
    )
    if implementation == 'cudnn':
      attend = functools.partial(cudnn, tokens=self.tokens)
      return out(sharding.per_shard(attend, *per_head)(query, key, value))
    if self.axis != 'all':
      query, key, value = (
        split_axis(a, grid, self.axis) for a in (query, key, value)
      )
    table = None
    if options.relative:
      _, length, heads, size = query.shape
      shared = options.position_embedding == 'relative'
      table = self.param(
        'relative_embedding',
        nn.initializers.normal(options.position_stddev),
        (2 * length - 1, 1 if shared else heads, size),
      )
    x = plain(query, key, value, table)
    if self.axis != 'all':
      x = merge_axis(x, grid, self.axis)
    return out(x)  # [B, L, D]

  def _angles(self, x: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """Returns the angles of tokens [B, L, D], see `rotary.angles`."""
    options, (_, rows, width) = self.options, x.shape
    width, learned = head_width(width, options.heads), None
    if options.rotary == 'mixed':
      init = rotary.init_mixed(options.rotary_base)
      shape = 2, options.heads, width // 2
      learned = self.param('rotary_frequencies', init, shape)
    tokens = self.tokens or rows
    return rotary.angles(options, grid, tokens, rows, width, learned)
