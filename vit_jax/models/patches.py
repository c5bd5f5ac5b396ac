"""Patches of images: how they are cut, embedded and replaced.

Axes: B batch, L patches, D width. Images are [B, height, width, channels].
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from vit_jax.models import position

# The value in `source` that selects the mask embedding instead of a patch.
MASK = -1


def cut_patches(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
  """Cuts images [B, height, width, C] into patches, row by row.

  It drops what is beyond the last whole patch on the right and at the bottom.

  Returns:
    [B, L, high * wide * C], for patches of (high, wide).
  """
  batch, height, width, channels = images.shape
  high, wide = patch_size
  rows, columns = position.token_grid((height, width), patch_size)
  if (rows * high, columns * wide) != (height, width):
    logging.log_first_n(
      logging.WARNING,
      'Size %dx%d (of the image in px, or of the feature map) is not a multiple'
      ' of the patch size %dx%d: the remainder on the right and at the bottom'
      ' is dropped.',
      1,
      *(height, width, *patch_size),
    )
  x = images[:, : rows * high, : columns * wide]
  x = x.reshape(batch, rows, high, columns, wide, channels)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(batch, rows * columns, -1)


def resize_kernel(kernel: jax.Array, size: tuple[int, int]) -> jax.Array:
  """Resizes the kernel of patches by the pseudo-inverse (arXiv:2212.08013).

  With B the matrix that resizes a patch bilinearly, the new kernel is
  pinv(B^T) w (Eq. 3 there): if patches are enlarged, their tokens stay exactly
  the same. As in the authors' code (big_vision, models/proj/flexi/vit.py), B is
  that of `tf.image.resize`: pixels have their centres at halves, and nothing is
  antialiased. B is the product of an axis' matrices, and so is its
  pseudo-inverse; thus the axes are resized one after the other.

  Args:
    kernel: [old height, old width, channels, D], any float dtype.
    size: the new (height, width).

  Returns:
    [height, width, channels, D], same dtype. A kernel of this size is returned
    as it is.
  """
  if kernel.shape[:2] == tuple(size):
    return kernel
  rows, columns = (
    np.linalg.pinv(_bilinear(*sizes).T).astype(kernel.dtype)  # [new, old]
    for sizes in zip(kernel.shape, size, strict=False)
  )
  return jnp.einsum(
    'ih,jw,hwcd->ijcd',
    *(rows, columns, kernel),
    # By default a TPU multiplies float32 in bfloat16.
    precision=jax.lax.Precision.HIGHEST,
  )


def _bilinear(old: int, new: int) -> np.ndarray:
  """Returns the weights [new, old] of `tf.image.resize`, float64."""
  places = (np.arange(new) + 0.5) * old / new - 0.5
  places = np.clip(places, 0, old - 1)[:, None]
  return np.maximum(0, 1 - np.abs(places - np.arange(old)))


class PatchEmbedding(nn.Module):
  """Cuts images into patches and projects each to a token (Eq. 1).

  Equals a VALID convolution whose stride is its kernel's size. A reshape and a
  matmul are faster than the convolution on TPU.

  Attributes:
    width: D.
    patch_size: (height, width) of a patch in pixels, or in positions of a
      feature map (§3.1, "Hybrid Architecture"; (1, 1) in the paper).
    dtype: compute dtype; parameters are float32.
    kernel_size: that of the stored kernel, which `resize_kernel` brings to
      `patch_size` at each call; None: it has the patches' size.
    use_bias: whether there is a bias.
  """

  width: int
  patch_size: tuple[int, int]
  dtype: jax.typing.DTypeLike = jnp.float32
  kernel_size: tuple[int, int] | None = None
  use_bias: bool = True

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps [B, height, width, channels] to tokens [B, L, D], row by row."""
    kernel = self.param(
      'kernel',
      nn.initializers.lecun_normal(),  # Fan in: high * wide * channels.
      (*(self.kernel_size or self.patch_size), images.shape[-1], self.width),
    )
    kernel = resize_kernel(kernel, self.patch_size)
    bias = jnp.zeros(self.width)
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros, (self.width,))
    images, kernel, bias = (
      jnp.asarray(a, self.dtype) for a in (images, kernel, bias)
    )
    x = cut_patches(images, self.patch_size)
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
