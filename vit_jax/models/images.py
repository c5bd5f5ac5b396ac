"""The images that every model takes: their range, shape and dtype."""

import jax
import jax.numpy as jnp


def normalize(images: jax.Array) -> jax.Array:
  """Maps uint8 [B, H, W, C] in 0..255 to float32 in [-1, 1]."""
  return (images.astype(jnp.float32) - 127.5) / 127.5


def check_images(images: jax.Array) -> None:
  """Checks the rank and the dtype of a batch of images.

  Raises:
    ValueError: the images are not float [B, height, width, channels].
  """
  if images.ndim != 4 or not jnp.issubdtype(images.dtype, jnp.floating):
    raise ValueError(
      f'images are {images.dtype}{list(images.shape)}, expected float '
      '[batch, height, width, channels] in [-1, 1]: (x - 127.5) / 127.5 '
      'of uint8 pixels x.'
    )
