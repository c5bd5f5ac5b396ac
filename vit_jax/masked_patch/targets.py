"""The prediction targets of a patch: the paper's three targets (B.1.2).

The paper gives 3 bits per channel, but no formula. Here a mean m in 0..255
becomes q = floor(8 m / 256), and the class of a colour is 64 q_R + 8 q_G + q_B.

Axes: `B` batch, `L` patches, `C` channels, `N` predicted colours per patch.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

LEVELS = 8  # 3 bits per channel.


def patches(images: jax.Array, patch_size: tuple[int, int]) -> jax.Array:
  """Cuts images into patches as `models.embedding` does.

  Args:
    images: [B, H, W, C]; pixels beyond the last whole patch are dropped.
    patch_size: (height, width) in pixels.

  Returns:
    [B, L, height, width, C], row by row.
  """
  batch, height, width, channels = images.shape
  high, wide = patch_size
  rows, columns = height // high, width // wide
  x = images[:, : rows * high, : columns * wide]
  x = x.reshape(batch, rows, high, columns, wide, channels)
  x = x.transpose(0, 1, 3, 2, 4, 5)
  return x.reshape(batch, rows * columns, high, wide, channels)


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
  weights = LEVELS ** jnp.arange(channels - 1, -1, -1)
  return (levels * weights).sum(axis=-1).reshape(*lead, side * side)


def colours(classes: jax.Array, channels: int) -> jax.Array:
  """Returns the colours at the centres of classes.

  Args:
    classes: int32 [...].
    channels: C.

  Returns:
    uint8 [..., C].
  """
  weights = LEVELS ** jnp.arange(channels - 1, -1, -1)
  levels = classes[..., None] // weights % LEVELS
  step = 256 // LEVELS
  return (levels * step + step // 2).astype(jnp.uint8)


@dataclasses.dataclass(frozen=True)
class Colours:
  """Predicts the mean colour of each cell of a patch among 8**C classes.

  Attributes:
    patch_size: (height, width) in pixels.
    channels: C.
    side: cells per side: 1 predicts the mean colour of a patch, 4 the patch
      downsized to 4x4.
  """

  patch_size: tuple[int, int]
  channels: int
  side: int

  @property
  def num_classes(self) -> int:
    """Number of classes of a colour."""
    return LEVELS**self.channels

  @property
  def outputs(self) -> int:
    """Number of outputs of the model per patch."""
    return self.side**2 * self.num_classes

  def classes(self, pixels: jax.Array) -> jax.Array:
    """Returns the classes of patches [B, L, height, width, C]: [B, L, N]."""
    return colour_classes(pixels, self.side)

  def predicted_classes(self, predictions: jax.Array) -> jax.Array:
    """Returns the classes of model outputs [B, L, outputs]: int32 [B, L, N]."""
    return self._logits(predictions).argmax(axis=-1)

  def loss(self, predictions: jax.Array, pixels: jax.Array) -> jax.Array:
    """Returns the cross-entropy, a mean over the cells: float32 [B, L]."""
    return optax.softmax_cross_entropy_with_integer_labels(
      self._logits(predictions), self.classes(pixels)
    ).mean(axis=-1)

  def pixels(self, predictions: jax.Array) -> jax.Array:
    """Returns patches in predicted colours: uint8 [B, L, height, width, C]."""
    classes = self.predicted_classes(predictions)
    cells = colours(classes, self.channels)  # [B, L, N, C]
    cells = cells.reshape(*classes.shape[:-1], self.side, self.side, -1)
    for axis, length in zip((-3, -2), self.patch_size, strict=True):
      # With side 1, patches may have any size.
      cells = jnp.repeat(cells, length // self.side, axis=axis)
    return cells

  def _logits(self, predictions):  # [B, L, outputs] -> [B, L, N, classes]
    return predictions.reshape(
      *predictions.shape[:-1], self.side**2, self.num_classes
    )


@dataclasses.dataclass(frozen=True)
class Pixels:
  """Predicts all pixels of a patch by regression.

  The classes for the accuracy are those of the patch's mean colour.

  Attributes:
    patch_size: (height, width) in pixels.
    channels: C.
  """

  patch_size: tuple[int, int]
  channels: int

  @property
  def num_classes(self) -> int:
    """Number of classes of a colour."""
    return LEVELS**self.channels

  @property
  def outputs(self) -> int:
    """Number of outputs of the model per patch: its pixels in [-1, 1]."""
    return self.patch_size[0] * self.patch_size[1] * self.channels

  def classes(self, pixels: jax.Array) -> jax.Array:
    """Returns the classes of patches [B, L, height, width, C]: [B, L, 1]."""
    return colour_classes(pixels, 1)

  def predicted_classes(self, predictions: jax.Array) -> jax.Array:
    """Returns the class of the mean prediction: int32 [B, L, 1]."""
    means = self._in_rows(predictions).mean(axis=-2)  # [B, L, C]
    means = jnp.clip(means * 127.5 + 127.5, 0, 255)
    levels = (means // (256 // LEVELS)).astype(jnp.int32)
    weights = LEVELS ** jnp.arange(self.channels - 1, -1, -1)
    return (levels * weights).sum(axis=-1, keepdims=True)

  def loss(self, predictions: jax.Array, pixels: jax.Array) -> jax.Array:
    """Returns the mean squared error over a patch: float32 [B, L]."""
    wanted = (pixels.astype(jnp.float32) - 127.5) / 127.5
    wanted = wanted.reshape(predictions.shape)
    return jnp.square(predictions - wanted).mean(axis=-1)

  def pixels(self, predictions: jax.Array) -> jax.Array:
    """Returns the predicted patches: uint8 [B, L, height, width, C]."""
    x = jnp.clip(jnp.round(predictions * 127.5 + 127.5), 0, 255)
    shape = (*predictions.shape[:-1], *self.patch_size, self.channels)
    return x.reshape(shape).astype(jnp.uint8)

  def _in_rows(self, predictions):  # [B, L, outputs] -> [B, L, h * w, C]
    return predictions.reshape(*predictions.shape[:-1], -1, self.channels)


Target = Colours | Pixels

NAMES = ('mean_colour', 'downsized', 'pixels')
_DOWNSIZED = 4


def build(name: str, patch_size: tuple[int, int], channels: int) -> Target:
  """Returns the target of a name in NAMES.

  Raises:
    ValueError: the name is unknown, there are more than three channels, or the
      patches cannot be downsized.
  """
  if name not in NAMES:
    raise ValueError(
      f'loss.target={name!r} is unknown; choose one of {list(NAMES)}.'
    )
  if channels > 3:
    raise ValueError(
      f'channels={channels} are too many: masked patch prediction has'
      f' {LEVELS}**channels classes of colours, and allows at most 3 channels.'
    )
  if name == 'pixels':
    return Pixels(patch_size, channels)
  if name == 'mean_colour':
    return Colours(patch_size, channels, side=1)
  if any(side % _DOWNSIZED for side in patch_size):
    raise ValueError(
      f"loss.target='downsized' cuts patches into {_DOWNSIZED}x{_DOWNSIZED}"
      ' equal cells, which is not possible for patches of'
      f' {patch_size[0]}x{patch_size[1]} px. Choose a patch size that is a'
      " multiple of 4, or loss.target='mean_colour'."
    )
  return Colours(patch_size, channels, side=_DOWNSIZED)
