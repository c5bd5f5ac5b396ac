"""The decoder of a masked autoencoder (arXiv:2111.06377).

The encoder is a `vit.ViT`, which reads the visible patches only. The decoder
reads the encoder's output, and a mask token in place of each hidden patch.

Axes: B batch, L patches of an image, V visible patches, S other tokens.
"""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models.encoder import Encoder
from vit_jax.models.model_options import Options
from vit_jax.models.shared import FLOAT32_SUMS

# Options that the decoder shares with the encoder.
_AS_ENCODER = (
  *('gelu', 'norm_epsilon', 'attention_implementation'),
  *('dtype', 'remat', 'scan'),
)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a decoder, and what it is given.

  Attributes:
    depth: number of blocks.
    width: width of the tokens; the MLPs' hidden layers are four times as wide.
    heads: attention heads of a block.
    visible: V.
  """

  depth: int
  width: int
  heads: int
  visible: int


class Decoder(nn.Module):
  """Predicts patches from the encoded tokens of the visible ones.

  The blocks are the paper's, without dropout, whatever the encoder's are.
  Positions are fixed waves, as in the authors' code.

  Differs from the authors' code: a new kernel of the queries, keys or values
  has Xavier's range for itself, not for the three together.

  Attributes:
    options: of the encoder.
    sizes: see `Sizes`.
    outputs: how many numbers to predict for each patch.
  """

  options: Options
  sizes: Sizes
  outputs: int

  @nn.compact
  def __call__(
    self,
    encoded: jax.Array,
    hidden: jax.Array | None,
    *,
    grid: tuple[int, int],
    train: bool,
  ) -> jax.Array:
    """Predicts all patches.

    Args:
      encoded: [B, S + V, D], the visible patches last, in raster order.
      hidden: bool [B, L], V of a row are False; None if all are visible.
      grid: (rows, columns) of the patches.
      train: whether this is training.

    Returns:
      [B, L, outputs], float32.
    """
    sizes = self.sizes
    options = Options(
      sizes.depth,
      sizes.heads,
      mlp_dim=4 * sizes.width,
      position_embedding='sincos2d_mae',
      **{name: getattr(self.options, name) for name in _AS_ENCODER},
    )
    dense = functools.partial(
      nn.Dense,
      kernel_init=nn.initializers.xavier_uniform(),
      dtype=options.dtype,
    )
    x = dense(sizes.width, name='embedding')(encoded)  # [B, S + V, width]
    mask = self.param(
      'mask_embedding', nn.initializers.normal(0.02), (sizes.width,)
    )
    if hidden is not None:
      batch, first = len(x), x.shape[1] - sizes.visible
      mask = jnp.broadcast_to(mask.astype(x.dtype), (batch, 1, sizes.width))
      x = jnp.concatenate([x, mask], axis=1)
      # Each patch is the next visible one, or the mask token at the end.
      index = jnp.cumsum(~hidden, axis=1) - 1
      index = jnp.where(hidden, sizes.visible, index)[..., None]  # [B, L, 1]
      patches = jnp.take_along_axis(x[:, first:], index, axis=1)
      x = jnp.concatenate([x[:, :first], patches], axis=1)  # [B, S + L, width]
    out = Encoder(options, name='Transformer')(x, grid=grid, train=train)
    x = out['encoded'][:, -math.prod(grid) :]
    head = dense(self.outputs, dot_general=FLOAT32_SUMS, name='patch_head')
    return head(x)
