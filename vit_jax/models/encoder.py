"""The Transformer encoder: blocks of attention and MLP (Eqs. 2-4).

Axes: B batch, L tokens, D width.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.models import attention, dot_product, layout, position
from vit_jax.models.dropout import Dropout, depth_rates, stochastic_depth

# What the backward pass keeps of a block: `none` keeps all, `full` only the
# block's input, `dots` also the outputs of the dense layers, but not those of
# attention's products, which are larger.
REMAT_POLICIES = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}

POSITION_EMBEDDINGS = (
  'none',
  *position.ADDED,
  'relative',
  'relative_per_head',
)
_RELATIVE = {'relative': 'shared', 'relative_per_head': 'per_head'}
POSITION_SITES = ('stem', 'every_layer', 'every_layer_shared')
ATTENTIONS = ('full', 'axial')
GELUS = ('tanh', 'exact')
NORM_POSITIONS = ('pre', 'post')


class MlpBlock(nn.Module):
  """Dense, GELU, Dense; dropout after the GELU and at the end.

  Attributes:
    mlp_dim: hidden size.
    gelu: 'tanh', the approximation that the released code and weights use, or
      'exact'.
    dropout_rate: probability of zeroing, in both dropouts.
    row_major: whether the compiler must keep the order of `layout.row_major`.
    dtype: compute dtype; parameters are float32.
  """

  mlp_dim: int
  gelu: str = 'tanh'
  dropout_rate: float = 0.0
  row_major: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Maps [B, L, D] to [B, L, D]."""
    dense = functools.partial(
      nn.Dense,
      kernel_init=nn.initializers.xavier_uniform(),
      bias_init=nn.initializers.normal(1e-6),
      dtype=self.dtype,
    )
    dropout = functools.partial(
      Dropout, self.dropout_rate, deterministic=not train
    )
    keep = functools.partial(layout.keep_row_major, on=self.row_major)
    hidden = sharding.BATCH, None, sharding.TENSOR
    width = x.shape[-1]
    x = dense(self.mlp_dim, name='Dense_0')(x)  # [B, L, mlp_dim]
    x = keep(sharding.constrain(x, *hidden), *hidden)
    gelu = functools.partial(nn.gelu, approximate=self.gelu == 'tanh')
    if self.row_major:
      # The backward pass reads the GELU's input only. Otherwise the forward
      # pass writes a second array for it, as large as the hidden layer, which
      # also keeps the library from computing the GELU within the product.
      gelu = jax.checkpoint(gelu)
    x = keep(gelu(x), *hidden)
    x = dropout()(x)
    x = keep(dense(width, name='Dense_1')(x), sharding.BATCH)  # [B, L, D]
    return dropout()(x)


class EncoderBlock(nn.Module):
  """A Transformer block (Eqs. 2 and 3, or parallel, or post-LayerNorm).

  Attributes are those of `ViT` with the same names. `axis` and `tokens` are
  those of `attention.MultiHeadDotProductAttention`.
  """

  heads: int
  mlp_dim: int
  axis: str = 'all'
  tokens: int | None = None
  attention_implementation: str = 'plain'
  position_embedding: str = 'none'
  position_site: str = 'stem'
  position_stddev: float = position.STDDEV
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  norm_position: str = 'pre'
  parallel: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  norm_bias: bool = True
  dropout_rate: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    grid: tuple[int, int],
    train: bool,
    skip_rate: jax.typing.ArrayLike | None = None,
  ) -> jax.Array:
    """Maps [B, L, D] to [B, L, D].

    Args:
      x: the tokens.
      grid: (rows, columns) of the patches.
      train: whether dropout is on.
      skip_rate: the rate of `stochastic_depth`. Attention and MLP are left out
        independently, but together if they are parallel.
    """
    row_major = self.attention_implementation == 'cudnn'

    def keep(x):
      return layout.keep_row_major(x, sharding.BATCH, on=row_major)

    def norm(position, index, x):
      """Normalises tokens if this is where the block does so."""
      if position != self.norm_position:
        return x
      layer = nn.LayerNorm(
        epsilon=self.norm_epsilon,
        use_bias=self.norm_bias,
        dtype=self.dtype,
        name=f'LayerNorm_{index}',
      )
      return keep(layer(x))

    if self.position_site == 'every_layer':
      x += position_table(
        self.position_embedding, x, grid, self.position_stddev, self.tokens
      )
    x = keep(x)
    normed = norm('pre', 0, x)
    y = attention.MultiHeadDotProductAttention(
      self.heads,
      axis=self.axis,
      relative=_RELATIVE.get(self.position_embedding, 'none'),
      relative_stddev=self.position_stddev,
      implementation=self.attention_implementation,
      tokens=self.tokens,
      qk_norm=self.qk_norm,
      qkv_bias=self.qkv_bias,
      norm_epsilon=self.norm_epsilon,
      dtype=self.dtype,
      name='MultiHeadDotProductAttention_0',
    )(normed, grid=grid)
    y = Dropout(self.dropout_rate, deterministic=not train)(y)
    skip = stochastic_depth(self, skip_rate, x.shape[0])
    x = norm('post', 0, keep(x + skip(y)))
    if not self.parallel:
      normed = norm('pre', 1, x)
      skip = stochastic_depth(self, skip_rate, x.shape[0])
    y = MlpBlock(
      self.mlp_dim,
      gelu=self.gelu,
      dropout_rate=self.dropout_rate,
      row_major=row_major,
      dtype=self.dtype,
      name='MlpBlock_0',
    )(normed, train=train)
    return norm('post', 1, keep(x + skip(y)))


class AxialBlock(nn.Module):
  """A block within the rows, then one within the columns (§D.6).

  Position embeddings of a layer are added once, before the rows. Attributes are
  those of `ViT` with the same names.
  """

  heads: int
  mlp_dim: int
  position_embedding: str = 'none'
  position_site: str = 'stem'
  position_stddev: float = position.STDDEV
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  norm_position: str = 'pre'
  parallel: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  norm_bias: bool = True
  dropout_rate: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    *,
    grid: tuple[int, int],
    train: bool,
    skip_rate: jax.typing.ArrayLike | None = None,
  ) -> jax.Array:
    """Maps [B, rows * columns, D] to the same shape; see `EncoderBlock`."""
    if self.position_site == 'every_layer':
      x += position_table(
        self.position_embedding, x, grid, self.position_stddev
      )
    for axis in ('row', 'column'):
      x = EncoderBlock(
        self.heads,
        self.mlp_dim,
        axis=axis,
        position_embedding=self.position_embedding,
        position_stddev=self.position_stddev,
        gelu=self.gelu,
        norm_epsilon=self.norm_epsilon,
        norm_position=self.norm_position,
        parallel=self.parallel,
        qk_norm=self.qk_norm,
        qkv_bias=self.qkv_bias,
        norm_bias=self.norm_bias,
        dropout_rate=self.dropout_rate,
        dtype=self.dtype,
        name=axis,
      )(x, grid=grid, train=train, skip_rate=skip_rate)
    return x


def position_table(
  kind: str,
  x: jax.Array,
  grid: tuple[int, int],
  stddev: float,
  tokens: int | None = None,
) -> jax.Array:
  """Returns position embeddings, of a new submodule `posembed_input`.

  Call it within an `nn.compact` method, whose module gets the submodule.

  Args:
    kind: a key of `position.ADDED`.
    x: [B, L, D] tokens.
    grid: (rows, columns) of the patches; all other tokens come before them.
    stddev: standard deviation of the initial values of learned embeddings.
    tokens: how many of the L rows are tokens; None means all. The other rows,
      at the end, get zeros.

  Returns:
    [1, L, D] in the tokens' dtype.
  """
  _, length, width = x.shape
  tokens = length if tokens is None else tokens
  options = {'stddev': stddev} if kind in position.LEARNED else {}
  table = position.ADDED[kind](**options, name='posembed_input')(
    grid=grid, num_prefix_tokens=tokens - math.prod(grid), width=width
  )
  return _with_rows(table.astype(x.dtype), length)


def _with_rows(x: jax.Array, length: int) -> jax.Array:
  """Appends rows of zeros: [B, L, D] -> [B, length, D]."""
  if x.shape[1] == length:
    return x
  return jnp.pad(x, [(0, 0), (0, length - x.shape[1]), (0, 0)])


class Encoder(nn.Module):
  """Position embedding, the blocks, and the final LayerNorm (Eqs. 1-4).

  Post-LayerNorm blocks end with a LayerNorm, so no other one follows the last.

  Attributes are those of `ViT` with the same names.
  """

  depth: int
  heads: int
  mlp_dim: int
  attention: str = 'full'
  attention_implementation: str = 'plain'
  position_embedding: str = '1d'
  position_site: str = 'stem'
  position_stddev: float = position.STDDEV
  gelu: str = 'tanh'
  norm_epsilon: float = 1e-6
  norm_position: str = 'pre'
  parallel: bool = False
  qk_norm: bool = False
  qkv_bias: bool = True
  norm_bias: bool = True
  dropout_rate: float = 0.0
  stochastic_depth: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'
  scan: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, *, grid: tuple[int, int], train: bool
  ) -> dict[str, jax.Array]:
    """Encodes tokens.

    Args:
      x: [B, L, D] tokens, the class token first if there is one.
      grid: (rows, columns) of the patch tokens.
      train: whether dropout and stochastic depth are on.

    Returns:
      `embedded`, the first block's input, and `encoded`, the output of the
      last LayerNorm, both [B, L, D].
    """
    x = sharding.constrain(x, sharding.BATCH)
    at_every_input = None  # [1, L, D]
    if self.position_embedding in position.ADDED:
      if self.position_site == 'stem':
        x = x + position_table(
          self.position_embedding, x, grid, self.position_stddev
        )
      elif self.position_site == 'every_layer_shared':
        at_every_input = position_table(
          self.position_embedding, x, grid, self.position_stddev
        )
    # Dropout directly follows the position embedding (B.1). If every layer adds
    # one, the paper leaves the place open; dropout then stays here, once.
    x = Dropout(self.dropout_rate, deterministic=not train)(x)
    out = {'embedded': x}
    x = self._run_blocks(x, at_every_input, grid=grid, train=train)
    if self.norm_position == 'pre':
      x = nn.LayerNorm(
        epsilon=self.norm_epsilon,
        use_bias=self.norm_bias,
        dtype=self.dtype,
        name='encoder_norm',
      )(x)
    out['encoded'] = x
    return out

  def _run_blocks(
    self,
    x: jax.Array,
    at_every_input: jax.Array | None,
    *,
    grid: tuple[int, int],
    train: bool,
  ) -> jax.Array:
    tokens = x.shape[1]
    relative = self.position_embedding in _RELATIVE
    if self.attention == 'full' and not relative:  # Else it is always 'plain'.
      length = dot_product.padded_length(self.attention_implementation, tokens)
      x = _with_rows(x, length)
      if at_every_input is not None:
        at_every_input = _with_rows(at_every_input, length)

    rates = depth_rates(self.stochastic_depth if train else 0, self.depth)

    def run_block(block, x, added, skip_rate):
      x = x if added is None else x + added
      x = block(x, grid=grid, train=train, skip_rate=skip_rate)
      return sharding.constrain(x, sharding.BATCH)

    if self.remat != 'none':
      run_block = nn.remat(
        run_block,
        policy=REMAT_POLICIES[self.remat],
        prevent_cse=not self.scan,  # A scan's loop body prevents it already.
      )
    if self.attention == 'axial':
      kind = AxialBlock
    else:
      kind = functools.partial(
        EncoderBlock,
        tokens=tokens,
        attention_implementation=self.attention_implementation,
      )
    block = functools.partial(
      kind,
      heads=self.heads,
      mlp_dim=self.mlp_dim,
      position_embedding=self.position_embedding,
      position_site=self.position_site,
      position_stddev=self.position_stddev,
      gelu=self.gelu,
      norm_epsilon=self.norm_epsilon,
      norm_position=self.norm_position,
      parallel=self.parallel,
      qk_norm=self.qk_norm,
      qkv_bias=self.qkv_bias,
      norm_bias=self.norm_bias,
      dropout_rate=self.dropout_rate,
      dtype=self.dtype,
    )
    if self.scan:
      stacked = jnp.array([rate or 0 for rate in rates]) if any(rates) else None
      x, _ = nn.scan(
        lambda block, x, *inputs: (run_block(block, x, *inputs), None),
        variable_axes={'params': 0},
        split_rngs={'params': True, 'dropout': True},
        in_axes=(nn.broadcast, 0),
        length=self.depth,
      )(block(name='encoderblock'), x, at_every_input, stacked)
    else:
      for i, rate in enumerate(rates):
        x = run_block(block(name=f'encoderblock_{i}'), x, at_every_input, rate)
    return x[:, :tokens]


def stack_blocks(params: dict) -> dict:
  """Converts unrolled parameters for `scan=True`.

  Args:
    params: a `ViT`'s parameters with `Transformer/encoderblock_{i}/...`.

  Returns:
    The same parameters, with the blocks' arrays stacked to [depth, ...] under
    `Transformer/encoderblock/...`.

  Raises:
    ValueError: there are no unrolled blocks.
  """
  encoder = dict(params['Transformer'])
  blocks = []
  while (name := f'encoderblock_{len(blocks)}') in encoder:
    blocks.append(encoder.pop(name))
  if not blocks:
    raise ValueError(f'expected encoderblock_0 among {sorted(encoder)}.')
  encoder['encoderblock'] = jax.tree.map(lambda *a: jnp.stack(a), *blocks)
  return {**params, 'Transformer': encoder}


def unstack_blocks(params: dict) -> dict:
  """Inverts `stack_blocks`; ValueError if there are no stacked blocks."""
  encoder = dict(params['Transformer'])
  if 'encoderblock' not in encoder:
    raise ValueError(f'expected encoderblock among {sorted(encoder)}.')
  stacked = encoder.pop('encoderblock')
  for i in range(len(jax.tree.leaves(stacked)[0])):
    encoder[f'encoderblock_{i}'] = jax.tree.map(lambda a, i=i: a[i], stacked)
  return {**params, 'Transformer': encoder}
