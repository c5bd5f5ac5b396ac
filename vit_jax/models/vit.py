"""The Vision Transformer (arXiv:2010.11929, §3.1).

Modules and parameters carry the names of the released checkpoints, so that
those map one to one.

Axes: B batch, L tokens, D width. Images are [B, height, width, channels].
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging

from vit_jax.models import attention, position

POOLINGS = ('token', 'gap')

# What the backward pass keeps of a block, instead of all of it: `full` only
# its input; `dots` also the outputs of the dense layers, not of attention's
# products, which are larger.
REMAT_POLICIES = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class PatchEmbedding(nn.Module):
  """Cuts images into patches and projects each to a token (Eq. 1).

  Equals a VALID convolution whose stride is its kernel's size, pixels beyond
  the last whole patch dropped right and bottom. A reshape and a matmul are
  faster than the convolution on TPU.

  Attributes:
    width: D.
    patch_size: (height, width) of a patch in pixels.
    dtype: compute dtype; parameters are float32.
  """

  width: int
  patch_size: tuple[int, int]
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps [B, height, width, channels] to tokens [B, L, D], row by row."""
    batch, *image_size, channels = images.shape
    high, wide = self.patch_size
    rows, columns = position.token_grid(tuple(image_size), self.patch_size)
    if (rows * high, columns * wide) != tuple(image_size):
      _warn_of_remainder(tuple(image_size), self.patch_size)
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),  # Fan in: high * wide * channels.
      (high, wide, channels, self.width),
    )
    bias = self.param('bias', nn.initializers.zeros, (self.width,))
    images, kernel, bias = (
      jnp.asarray(a, self.dtype) for a in (images, kernel, bias)
    )
    x = images[:, : rows * high, : columns * wide]
    x = x.reshape(batch, rows, high, columns, wide, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(batch, rows * columns, -1)  # [B, L, high * wide * channels]
    return x @ kernel.reshape(-1, self.width) + bias[None, None]  # [B, L, D]


@functools.cache  # Once per size and patch, however often it is traced.
def _warn_of_remainder(
  image_size: tuple[int, int], patch_size: tuple[int, int]
) -> None:
  logging.warning(
    'Image size %dx%d px is not a multiple of the patch size %dx%d: the '
    'remaining pixels on the right and at the bottom are dropped.',
    *image_size,
    *patch_size,
  )


class MlpBlock(nn.Module):
  """Dense, GELU, Dense; dropout after the GELU and at the end."""

  mlp_dim: int
  dropout_rate: float = 0.0
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
      nn.Dropout, self.dropout_rate, deterministic=not train
    )
    width = x.shape[-1]
    x = dense(self.mlp_dim, name='Dense_0')(x)  # [B, L, mlp_dim]
    # The released code and weights use the tanh approximation.
    x = nn.gelu(x, approximate=True)
    x = dropout()(x)
    x = dense(width, name='Dense_1')(x)  # [B, L, D]
    return dropout()(x)


class EncoderBlock(nn.Module):
  """A pre-LayerNorm Transformer block (Eqs. 2 and 3)."""

  heads: int
  mlp_dim: int
  dropout_rate: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """Maps [B, L, D] to [B, L, D]."""
    y = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, name='LayerNorm_0')(x)
    y = attention.MultiHeadDotProductAttention(
      self.heads, dtype=self.dtype, name='MultiHeadDotProductAttention_0'
    )(y)
    y = nn.Dropout(self.dropout_rate, deterministic=not train)(y)
    x = x + y
    y = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, name='LayerNorm_1')(x)
    y = MlpBlock(
      self.mlp_dim,
      dropout_rate=self.dropout_rate,
      dtype=self.dtype,
      name='MlpBlock_0',
    )(y, train=train)
    return x + y


class Encoder(nn.Module):
  """Position embedding, the blocks, and the final LayerNorm (Eqs. 1-4).

  Attributes: those of `ViT` with the same names.
  """

  depth: int
  heads: int
  mlp_dim: int
  dropout_rate: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'
  scan: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, *, grid: tuple[int, int], train: bool
  ) -> dict[str, jax.Array]:
    """Encodes tokens.

    Args:
      x: [B, L, D] tokens.
      grid: (rows, columns) of the patch tokens.
      train: whether dropout is on.

    Returns:
      `embedded`, the first block's input, and `encoded`, both [B, L, D].
    """
    x = position.PositionEmbedding(name='posembed_input')(x, grid=grid)
    x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)
    out = {'embedded': x}

    def run_block(block, x):
      return block(x, train=train)

    if self.remat != 'none':
      run_block = nn.remat(
        run_block,
        policy=REMAT_POLICIES[self.remat],
        prevent_cse=not self.scan,  # A scan's loop body prevents it already.
      )
    block = functools.partial(
      EncoderBlock,
      heads=self.heads,
      mlp_dim=self.mlp_dim,
      dropout_rate=self.dropout_rate,
      dtype=self.dtype,
    )
    if self.scan:
      x, _ = nn.scan(
        lambda block, x, _: (run_block(block, x), None),
        variable_axes={'params': 0},
        split_rngs={'params': True, 'dropout': True},
        length=self.depth,
      )(block(name='encoderblock'), x, None)
    else:
      for i in range(self.depth):
        x = run_block(block(name=f'encoderblock_{i}'), x)
    out['encoded'] = nn.LayerNorm(
      epsilon=1e-6, dtype=self.dtype, name='encoder_norm'
    )(x)
    return out


class ViT(nn.Module):
  """The Vision Transformer, classifier included (arXiv:2010.11929, §3.1).

  Make one with `vit_jax.models.build`, which checks these attributes.

  Attributes:
    num_classes: number of logits.
    width: D, the size of a token.
    depth: number of Transformer blocks.
    heads: attention heads of a block; must divide the width.
    mlp_dim: hidden size of a block's MLP.
    patch_size: (height, width) of a patch in pixels.
    representation_size: size of the tanh layer before the head, the paper's
      pre-training head; None leaves it out, as in fine-tuning.
    pooling: 'token', a class token, or 'gap', the mean over the patch tokens
      (§D.3), which has no class token.
    dropout_rate: probability of zeroing, at the four places of the released
      code; attention weights are never dropped.
    head_bias: initial value of the head's bias. The head's kernel starts at 0.
    dtype: compute dtype. Parameters, the softmax, the LayerNorms' statistics
      and the head are float32 throughout.
    remat: what the backward pass recomputes; see `REMAT_POLICIES`.
    scan: run the blocks as one loop, which compiles faster. Their parameters
      are then stacked (`stack_blocks`), the same values give the same logits,
      but a key gives other initial values and dropout masks.
  """

  num_classes: int
  width: int
  depth: int
  heads: int
  mlp_dim: int
  patch_size: tuple[int, int]
  representation_size: int | None = None
  pooling: str = 'token'
  dropout_rate: float = 0.0
  head_bias: float = 0.0
  dtype: jax.typing.DTypeLike = jnp.float32
  remat: str = 'none'
  scan: bool = False

  @nn.compact
  def __call__(
    self, images: jax.Array, *, train: bool = False
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Classifies images.

    Args:
      images: [B, height, width, channels], float in [-1, 1].
      train: turns dropout on, which takes the random stream 'dropout' unless
        its rate is 0.

    Returns:
      logits: [B, num_classes], float32.
      out: `embedded` [B, L, D], the first block's input; `encoded` [B, L, D],
        after the last LayerNorm; `pre_logits` [B, D or representation_size],
        the head's input. All in the compute dtype.

    Raises:
      ValueError: the images are not float, not of rank 4, below one patch, or
        not of the size the parameters' position embedding is for.
    """
    if images.ndim != 4 or not jnp.issubdtype(images.dtype, jnp.floating):
      raise ValueError(
        f'images are {images.dtype}{list(images.shape)}, expected float '
        '[batch, height, width, channels] in [-1, 1]: (x - 127.5) / 127.5 '
        'of uint8 pixels x.'
      )
    grid = position.token_grid(images.shape[1:3], self.patch_size)
    x = PatchEmbedding(
      self.width, self.patch_size, dtype=self.dtype, name='embedding'
    )(images)
    if self.pooling == 'token':
      cls = self.param('cls', nn.initializers.zeros, (1, 1, self.width))
      cls = jnp.broadcast_to(cls, (len(images), 1, self.width))
      x = jnp.concatenate([cls.astype(x.dtype), x], axis=1)  # [B, L, D]
    out = Encoder(
      depth=self.depth,
      heads=self.heads,
      mlp_dim=self.mlp_dim,
      dropout_rate=self.dropout_rate,
      dtype=self.dtype,
      remat=self.remat,
      scan=self.scan,
      name='Transformer',
    )(x, grid=grid, train=train)
    encoded = out['encoded']
    x = encoded[:, 0] if self.pooling == 'token' else encoded.mean(axis=1)
    if self.representation_size is not None:
      x = nn.Dense(
        self.representation_size, dtype=self.dtype, name='pre_logits'
      )(x)
      x = jnp.tanh(x)
    out['pre_logits'] = x
    logits = nn.Dense(
      self.num_classes,
      kernel_init=nn.initializers.zeros,
      bias_init=nn.initializers.constant(self.head_bias),
      dtype=jnp.float32,
      # By default a TPU multiplies float32 in bfloat16.
      precision=jax.lax.Precision.HIGHEST,
      name='head',
    )(x)
    return logits, out


def stack_blocks(params: dict) -> dict:
  """Converts unrolled parameters for `scan=True`.

  Args:
    params: a `ViT`'s parameters with `Transformer/encoderblock_{i}/...`.

  Returns:
    The same with `Transformer/encoderblock/...`, [depth, ...] each.

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
