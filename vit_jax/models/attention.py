"""Multi-head attention (arXiv:2010.11929, Appendix A) and its ablations.

Axes: B batch, L tokens, D width, H heads, K width of one head.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import sharding


def head_width(width: int, heads: int) -> int:
  """Returns K = `width` / `heads`; ValueError if that is not an integer."""
  if width % heads:
    raise ValueError(
      f'width {width} is not a multiple of heads {heads}: each head takes an '
      'equal slice of the width; change one of the two.'
    )
  return width // heads


def dot_product_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  relative_embedding: jax.Array | None = None,
) -> jax.Array:
  """Exact softmax attention, without dropout and without a mask.

  Args:
    query: [B, L, H, K], any float dtype.
    key: [B, T, H, K], same dtype.
    value: [B, T, H, K], same dtype.
    relative_embedding: see `relative_scores`; None leaves them out.

  Returns:
    [B, L, H, K] in the inputs' dtype. Scores are rounded to that dtype (in
    bfloat16 they are the largest activation); the softmax is fp32 inside.
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
  """Scores of each query with the embedding of each key's offset (§D.4).

  Every offset p_q - p_k of two tokens, counted in raster order with the class
  token first, owns an embedding that is used as a key. It adds to the content
  scores before the softmax; values have no such term. Not established by the
  paper, and here as in Shaw et al. (arXiv:1803.02155): 1/sqrt(K) scales the
  sum of both terms.

  Args:
    query: [B, L, H, K].
    relative_embedding: [2L-1, H, K], or [2L-1, 1, K] if the heads share it;
      row p_q - p_k + L - 1.

  Returns:
    [B, H, L, L] scores, before scaling.
  """
  batch, length, heads, width = query.shape
  table = jnp.broadcast_to(
    relative_embedding[::-1], (2 * length - 1, heads, width)
  )
  # Column c is for the offset p_q - p_k = L - 1 - c.
  scores = jnp.einsum('bqhk,chk->bhqc', query, table)  # [B, H, L, 2L-1]
  # Row q starts at column L-1-q: with one column more, rows of 2L-1 of the
  # flat array shift by one column each. Cheaper than to gather [L, L, K].
  scores = jnp.pad(scores, [(0, 0), (0, 0), (0, 0), (0, 1)])
  scores = scores.reshape(batch, heads, -1)  # [B, H, L * 2L]
  scores = scores[..., length - 1 : -1].reshape(
    batch, heads, length, 2 * length - 1
  )
  return scores[..., :length]  # [B, H, L, L]


def split_axis(x: jax.Array, grid: tuple[int, int], axis: str) -> jax.Array:
  """Makes each row, or each column, of a token grid an example of its own.

  Args:
    x: [B, rows * columns, ...].
    grid: (rows, columns).
    axis: 'row': tokens of a row stay together; 'column': those of a column.

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


class MultiHeadDotProductAttention(nn.Module):
  """Projections to H heads, attention in each, projection back (Eqs. A5-A8).

  Attributes:
    heads: number of heads H; must divide the width D.
    axis: 'all' tokens attend to each other; 'row' or 'column': those of the
      same row or column of the grid (§D.6).
    relative: 'none'; 'shared' learns a relative embedding for all heads,
      'per_head' one for each (see `relative_scores`).
    dtype: compute dtype; parameters are float32.
  """

  heads: int
  axis: str = 'all'
  relative: str = 'none'
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    attended: jax.Array | None = None,
    grid: tuple[int, int] | None = None,
  ) -> jax.Array:
    """Attends.

    Args:
      x: [B, L, D] tokens that ask.
      attended: [B, T, D] tokens that are asked; None is `x`.
      grid: (rows, columns) of the tokens, unless the axis is 'all'.

    Returns:
      [B, L, D].

    Raises:
      ValueError: H does not divide D, or the relative embedding is for
        another number of tokens.
    """
    width = x.shape[-1]

    def project(features, axis, name):
      # DenseGeneral initialises the flattened [D, D] matrix, so both fans of
      # Xavier's rule are D, whatever the number of heads.
      return nn.DenseGeneral(
        features,
        axis=axis,
        kernel_init=nn.initializers.xavier_uniform(),
        dtype=self.dtype,
        name=name,
      )

    shape = (self.heads, head_width(width, self.heads))
    attended = x if attended is None else attended
    query, key, value = (
      sharding.constrain(
        project(shape, -1, name)(tokens),
        *(sharding.BATCH, None, sharding.TENSOR),
      )
      for name, tokens in (
        ('query', x),
        ('key', attended),
        ('value', attended),
      )
    )  # [B, L, H, K], [B, T, H, K] twice
    if self.axis != 'all':
      query, key, value = (
        split_axis(a, grid, self.axis) for a in (query, key, value)
      )
    table = None
    if self.relative != 'none':
      table = self._relative_embedding(*query.shape[1:])
    x = dot_product_attention(query, key, value, table)
    if self.axis != 'all':
      x = merge_axis(x, grid, self.axis)
    return project(width, (-2, -1), 'out')(x)  # [B, L, D]

  def _relative_embedding(
    self, length: int, heads: int, width: int
  ) -> jax.Array:
    if self.has_variable('params', 'relative_embedding'):
      stored = len(self.get_variable('params', 'relative_embedding'))
      if stored != 2 * length - 1:
        raise ValueError(
          f'the relative embedding has {stored} offsets, but {length} tokens '
          f'have {2 * length - 1}: use images of the size the parameters are '
          'for, or adapt the parameters with vit_jax.interop.load.'
        )
    return self.param(
      'relative_embedding',
      nn.initializers.normal(0.02),  # As the tables that are added.
      (2 * length - 1, heads if self.relative == 'per_head' else 1, width),
    )
