"""From an image, or a ResNet's feature map, to tokens (Eq. 1)."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging

from vit_jax.models import position

# The value in `source` that selects the mask embedding instead of a patch.
MASK = -1


class PatchEmbedding(nn.Module):
  """Cuts images into patches and projects each to a token (Eq. 1).

  Equals a VALID convolution whose stride is its kernel's size: it drops what is
  beyond the last whole patch on the right and at the bottom. A reshape and a
  matmul are faster than the convolution on TPU.

  Attributes:
    width: D.
    patch_size: (height, width) of a patch in pixels, or in positions of a
      feature map (§3.1, "Hybrid Architecture"; (1, 1) in the paper).
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


def replace_embeddings(
  embeddings: jax.Array, source: jax.Array, mask_embedding: jax.Array
) -> jax.Array:
  """Replaces embeddings of patches by others, or by the mask's (B.1.2).

  Args:
    embeddings: [B, L, D].
    source: int32 [B, L], the index of the patch of the same image whose
      embedding each patch gets, or MASK.
    mask_embedding: [D].

  Returns:
    [B, L, D] in the embeddings' dtype.
  """
  masked = (source == MASK)[..., None]  # [B, L, 1]
  index = jnp.maximum(source, 0)[..., None]
  taken = jnp.take_along_axis(embeddings, index, axis=1)
  return jnp.where(masked, mask_embedding.astype(embeddings.dtype), taken)


@functools.cache  # Warns once per size and patch, however often JAX traces.
def _warn_of_remainder(
  image_size: tuple[int, int], patch_size: tuple[int, int]
) -> None:
  logging.warning(
    'Size %dx%d (of the image in px, or of the feature map) is not a multiple '
    'of the patch size %dx%d: the remainder on the right and at the bottom is '
    'dropped.',
    *image_size,
    *patch_size,
  )
