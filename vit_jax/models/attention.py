"""Multi-head attention (arXiv:2010.11929, Appendix A) and its ablations.

The softmax attention within each head is in `dot_product.py`.

Axes: B batch, L tokens, D width, H heads, K width of one head.
"""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import sharding
from vit_jax.models import dot_product, layout, position
from vit_jax.models.dot_product import IMPLEMENTATIONS


def head_width(width: int, heads: int) -> int:
  """Returns K = `width` / `heads`; ValueError if that is not an integer."""
  if width % heads:
    raise ValueError(
      f'width {width} is not a multiple of heads {heads}: each head takes an '
      'equal slice of the width; change one of the two.'
    )
  return width // heads


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


class MultiHeadDotProductAttention(nn.Module):
  """Projections to H heads, attention in each, projection back (Eqs. A5-A8).

  Attributes:
    heads: number of heads H; must divide the width D.
    axis: which tokens attend to each other: 'all', or with 'row' or 'column'
      only those of the same row or column of the grid (§D.6).
    relative: 'none'; 'shared' learns a relative embedding for all heads,
      'per_head' one for each (see `dot_product.relative_scores`).
    relative_stddev: standard deviation of the relative embedding's initial
      values; the default is that of the added position embeddings.
    implementation: one of `dot_product.IMPLEMENTATIONS`. Another axis than
      'all', a relative embedding or `attended` always uses 'plain'.
    tokens: how many of the L rows are tokens, for 'cudnn'; None means all.
    qk_norm: normalise each query and key; all heads share the scales [K].
    qkv_bias: whether query, key and value have biases.
    norm_epsilon: epsilon of the norms of `qk_norm`.
    dtype: compute dtype; parameters are float32.
  """

  heads: int
  axis: str = 'all'
  relative: str = 'none'
  relative_stddev: float = position.STDDEV
  implementation: str = 'plain'
  tokens: int | None = None
  qk_norm: bool = False
  qkv_bias: bool = True
  norm_epsilon: float = 1e-6
  dtype: jax.typing.DTypeLike = jnp.float32

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
      grid: (rows, columns) of the tokens; unused if the axis is 'all'.

    Returns:
      [B, L, D].

    Raises:
      ValueError: H does not divide D, or the relative embedding is for
        another number of tokens.
    """
    width = x.shape[-1]
    shape = (self.heads, head_width(width, self.heads))
    flat = self.implementation == 'cudnn'
    query, key, value = (
      _ToHeads(shape, self.qkv_bias, dtype=self.dtype, name=name)
      if flat
      else self._projection(shape, -1, name, self.qkv_bias)
      for name in ('query', 'key', 'value')
    )
    if self.qk_norm:
      query, key = map(self._normed, (query, key))
    out = self._projection(width, (-2, -1), 'out')

    def split_heads(tokens, *projections):  # [B, L, D] -> [B, L, H, K] each
      return [
        sharding.constrain(p(tokens), sharding.BATCH, None, sharding.TENSOR)
        for p in projections
      ]

    implementation = self.implementation
    if attended is not None or self.axis != 'all' or self.relative != 'none':
      implementation = 'plain'
    if implementation == 'lanes':
      # Where a shard's batch fills the lanes (128 images), the compiler would
      # else put the batch there and copy the heads between the two layouts.
      in_order = sharding.per_shard(layout.row_major, sharding.BATCH)
      x = in_order(x)
      blocks = jnp.split(
        x, np.cumsum(dot_product.block_sizes(x.shape[1]))[:-1], axis=1
      )
      heads = [split_heads(block, query, key, value) for block in blocks]
      attended = sharding.per_shard(
        dot_product.lane_blocks, sharding.BATCH, None, sharding.TENSOR
      )(*zip(*heads, strict=True))
      return in_order(
        jnp.concatenate([out(block) for block in attended], axis=1)
      )

    (query,) = split_heads(x, query)
    key, value = split_heads(x if attended is None else attended, key, value)
    if implementation == 'cudnn':
      per_head = sharding.BATCH, None, sharding.TENSOR
      attend = functools.partial(dot_product.cudnn, tokens=self.tokens)
      x = sharding.per_shard(attend, *per_head)(
        *(layout.keep_row_major(a, *per_head) for a in (query, key, value))
      )
      x = out(layout.keep_row_major(x, *per_head))
      return layout.keep_row_major(x, sharding.BATCH)
    if self.axis != 'all':
      query, key, value = (
        split_axis(a, grid, self.axis) for a in (query, key, value)
      )
    if self.relative != 'none':
      table = self._relative_embedding(*query.shape[1:])
      x = dot_product.plain(query, key, value, table)
    else:
      attend = IMPLEMENTATIONS[implementation]
      if implementation == 'splash':
        # The compiler cannot split a Pallas kernel across devices.
        attend = sharding.per_shard(
          attend, sharding.BATCH, None, sharding.TENSOR
        )
      x = attend(query, key, value)
    if self.axis != 'all':
      x = merge_axis(x, grid, self.axis)
    return out(x)  # [B, L, D]

  def _normed(self, projection: nn.Module) -> Callable[[jax.Array], jax.Array]:
    norm = nn.LayerNorm(
      epsilon=self.norm_epsilon,
      use_bias=False,
      dtype=self.dtype,
      name=f'{projection.name}_norm',
    )
    return lambda x: norm(projection(x))

  def _projection(
    self, features, axis, name: str, use_bias: bool = True
  ) -> nn.Module:
    # DenseGeneral initialises the flattened [D, D] matrix, so both fans of
    # Xavier's rule are D, whatever the number of heads.
    return nn.DenseGeneral(
      features,
      axis=axis,
      use_bias=use_bias,
      kernel_init=nn.initializers.xavier_uniform(),
      dtype=self.dtype,
      name=name,
    )

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
      nn.initializers.normal(self.relative_stddev),
      (2 * length - 1, heads if self.relative == 'per_head' else 1, width),
    )


class _ToHeads(nn.Module):
  """`nn.DenseGeneral` to H heads, as a product of matrices with a flat bias.

  NVIDIA's libraries add a flat bias within a product. A bias of heads would
  first be copied to every token. Parameters and their initial values are those
  of `nn.DenseGeneral`.

  Attributes:
    features: (H, K).
    use_bias: whether there is a bias.
    dtype: compute dtype; parameters are float32.
  """

  features: tuple[int, int]
  use_bias: bool = True
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, L, D] to [B, L, H, K]."""
    width, outputs = x.shape[-1], math.prod(self.features)

    def init(key, shape, dtype):
      flat = nn.initializers.xavier_uniform()(key, (width, outputs), dtype)
      return flat.reshape(shape)

    kernel = self.param('kernel', init, (width, *self.features), jnp.float32)
    x = x @ kernel.astype(self.dtype).reshape(width, outputs)
    if self.use_bias:
      zeros = nn.initializers.zeros
      bias = self.param('bias', zeros, self.features, jnp.float32)
      x += bias.astype(self.dtype).reshape(outputs)
    return x.reshape(*x.shape[:-1], *self.features)
