"""The prediction targets of a patch: the paper's three targets (B.1.2).

The paper gives 3 bits per channel, but no formula. Here a mean m in 0..255
becomes q = floor(8 m / 256), and the class of a colour is 64 q_R + 8 q_G + q_B.

Axes: `B` batch, `L` patches, `C` channels, `N` predicted colours per patch.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from vit_jax.models import vit
from vit_jax.models.shared import normalize

LEVELS = 8  # 3 bits per channel.
_DOWNSIZED = 4


def patches(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
  """Cuts images into patches; see `models.vit.cut_patches`.

  Args:
    images: [B, H, W, C]; pixels beyond the last whole patch are dropped.
    patch_size: (height, width) in pixels.

  Returns:
    [B, L, height, width, C], row by row.
  """
  x = vit.cut_patches(images, patch_size)
  return x.reshape(*x.shape[:2], *patch_size, images.shape[-1])


def colour_classes(pixels: jax.Array, side: int) -> jax.Array:
  """Returns the classes of mean colours, computed in integers.

  Args:
    pixels: uint8 [B, L, height, width, C].
    side: a patch is cut into side x side cells, each with its own mean.

  Returns:
    int32 [B, L, side * side], cells row by row, in 0 .. 8**C - 1.
  """
  *lead, height, width, channels = pixels.shape
  high, wide = height // side, width // side
  x = pixels.astype(jnp.int32)
  x = x.reshape(*lead, side, high, side, wide, channels)
  sums = x.sum(axis=(-4, -2))  # [B, L, side, side, C]
  levels = sums // (256 // LEVELS * high * wide)
  return (levels * _weights(channels)).sum(axis=-1).reshape(*lead, side * side)


@dataclasses.dataclass(frozen=True)
class Target:
  """What is predicted of a patch.

  Attributes:
    name: 'mean_colour', or the colours of the patch 'downsized'
      to 4x4 cells, among 8**C classes each; or all 'pixels' by regression,
      whose accuracy is that of the patch's mean colour.
    patch_size: (height, width) in pixels.
    channels: C.
    normalise: whether the pixels to predict of a patch have mean 0 and variance
      1, see `_statistics`.
  """

  name: str
  patch_size: tuple[int, int]
  channels: int
  normalise: bool = False

  @property
  def side(self) -> int:
    """Cells of a patch along one side."""
    return _DOWNSIZED if self.name == 'downsized' else 1

  @property
  def num_classes(self) -> int:
    """Number of classes of a colour."""
    return LEVELS**self.channels

  @property
  def outputs(self) -> int:
    """Number of outputs of the model per patch; pixels are in [-1, 1]."""
    if self.name == 'pixels':
      return self.patch_size[0] * self.patch_size[1] * self.channels
    return self.side**2 * self.num_classes

  def classes(self, pixels: jax.Array) -> jax.Array:
    """Returns the classes of patches [B, L, height, width, C]: [B, L, N]."""
    return colour_classes(pixels, self.side)

  def predicted_classes(self, predictions: jax.Array) -> jax.Array:
    """Returns the classes of model outputs [B, L, outputs]: int32 [B, L, N]."""
    if self.name != 'pixels':
      return self._logits(predictions).argmax(axis=-1)
    x = predictions.reshape(*predictions.shape[:-1], -1, self.channels)
    means = jnp.clip(x.mean(axis=-2) * 127.5 + 127.5, 0, 255)  # [B, L, C]
    levels = (means // (256 // LEVELS)).astype(jnp.int32)
    return (levels * _weights(self.channels)).sum(axis=-1, keepdims=True)

  def loss(self, predictions: jax.Array, pixels: jax.Array) -> jax.Array:
    """Returns each patch's loss, float32 [B, L].

    This is the cross-entropy, a mean over the cells; for 'pixels' the mean
    squared error.
    """
    if self.name == 'pixels':
      wanted = normalize(pixels).reshape(predictions.shape)
      if self.normalise:
        mean, deviation = _statistics(wanted)
        wanted = (wanted - mean) / deviation
      return jnp.square(predictions - wanted).mean(axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(
      self._logits(predictions), self.classes(pixels)
    ).mean(axis=-1)

  def pixels(self, predictions: jax.Array, pixels: jax.Array) -> jax.Array:
    """Returns predicted patches: uint8 [B, L, height, width, C].

    A class is drawn in the colour at its centre. Normalised pixels get the mean
    and the deviation of the true ones.

    Args:
      predictions: [B, L, outputs].
      pixels: the true patches, uint8 [B, L, height, width, C].
    """
    shape = (*predictions.shape[:-1], *self.patch_size, self.channels)
    if self.normalise:
      mean, deviation = _statistics(
        normalize(pixels).reshape(predictions.shape)
      )
      predictions = predictions * deviation + mean
    if self.name == 'pixels':
      x = jnp.clip(jnp.round(predictions * 127.5 + 127.5), 0, 255)
      return x.reshape(shape).astype(jnp.uint8)
    classes = self.predicted_classes(predictions)
    levels = classes[..., None] // _weights(self.channels) % LEVELS
    cells = levels * (256 // LEVELS) + 128 // LEVELS  # [B, L, N, C]
    cells = cells.reshape(*classes.shape[:-1], self.side, self.side, -1)
    for axis, length in zip((-3, -2), self.patch_size, strict=True):
      # With side 1, patches may have any size.
      cells = jnp.repeat(cells, length // self.side, axis=axis)
    return cells.astype(jnp.uint8)

  def _logits(self, predictions):  # [B, L, outputs] -> [B, L, N, classes]
    return predictions.reshape(
      *predictions.shape[:-1], self.side**2, self.num_classes
    )


def _statistics(pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the mean and the deviation of the numbers of each patch.

  As in the public code of masked autoencoders (facebookresearch/mae), all
  channels count together, the variance is unbiased, and 1e-6 is added to it.

  Differs from that code: it first subtracts ImageNet's mean from each channel
  and divides by ImageNet's deviation. Here, the targets keep the differences
  between the channels' means, which are up to 0.08 of the pixels' range.

  Args:
    pixels: [B, L, N].

  Returns:
    Two arrays [B, L, 1].
  """
  mean = pixels.mean(axis=-1, keepdims=True)
  variance = pixels.var(axis=-1, keepdims=True, ddof=1)
  return mean, jnp.sqrt(variance + 1e-6)


def _weights(channels: int) -> jax.Array:
  return LEVELS ** jnp.arange(channels - 1, -1, -1)


def build(name: str, patch_size: tuple[int, int], channels: int) -> Target:
  """Returns a target.

  Raises:
    ValueError: there are more than three channels, or the patches cannot be
      downsized.
  """
  if channels > 3:
    raise ValueError(
      f'channels={channels} are too many: masked patch prediction has'
      f' {LEVELS}**channels classes of colours, and allows at most 3 channels.'
    )
  if name == 'downsized' and any(side % _DOWNSIZED for side in patch_size):
    raise ValueError(
      f"loss.target='downsized' cuts patches into {_DOWNSIZED}x{_DOWNSIZED}"
      ' equal cells, which is not possible for patches of'
      f' {patch_size[0]}x{patch_size[1]} px. Choose a patch size that is a'
      " multiple of 4, or loss.target='mean_colour'."
    )
  return Target(name, patch_size, channels)
