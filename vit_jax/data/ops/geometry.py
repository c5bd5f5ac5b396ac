"""Resizes, pads, shifts and flips: where the pixels of a result come from."""

import dataclasses
from collections.abc import Collection

import cv2
import numpy as np

from vit_jax.data.ops import resizing
from vit_jax.data.ops.decoding import with_channels

Size = int | tuple[int, int]

_FARTHEST = 2**16  # The most pixels of a shift.
METHODS = ('bilinear', 'area', *resizing.PILLOW)
PAD_MODES = {'zeros': cv2.BORDER_CONSTANT, 'reflect': cv2.BORDER_REFLECT_101}


def pair(size: Size) -> tuple[int, int]:
  """Returns a size as (height, width)."""
  pair = (size, size) if isinstance(size, int) else size
  if (
    not isinstance(pair, tuple)
    or len(pair) != 2
    or not all(type(n) is int and n > 0 for n in pair)
  ):
    raise ValueError(
      'size must be a positive integer or a pair of them, (height, width), '
      f'got {size!r}'
    )
  return pair


def check_method(
  value: str, choices: Collection[str] = METHODS, what: str = 'method'
) -> None:
  """Raises ValueError, which lists the choices, if a value is none of them."""
  if value not in choices:
    raise ValueError(f'unknown {what} {value!r}; choose from {sorted(choices)}')


def _check_pixels(op, **least: int) -> None:
  """Checks that attributes of an operation are whole and large enough."""
  for name, low in least.items():
    value = getattr(op, name)
    if type(value) is not int or value < low:
      raise ValueError(f'{name}={value!r} must be a whole number of pixels')


@dataclasses.dataclass(frozen=True)
class Sized:
  """An operation whose result has `size`, stored as (height, width)."""

  size: Size

  def __post_init__(self):
    object.__setattr__(self, 'size', pair(self.size))


@dataclasses.dataclass(frozen=True)
class _Resized(Sized):
  """An operation that resizes; `Resize` explains how."""

  _: dataclasses.KW_ONLY
  method: str = 'bilinear'
  antialias: bool = False

  def __post_init__(self):
    super().__post_init__()
    check_method(self.method)
    if self.antialias and self.method != 'bilinear':
      raise ValueError(
        f'antialias is for bilinear, but method={self.method!r} settles it;'
        ' remove antialias'
      )

  def target(self, height: int, width: int) -> tuple[int, int]:
    """Returns the (height, width) of the result of an image of this size."""
    return self.size

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = self.target(*image.shape[:2])
    return resizing.resize(image, size, self.antialias, self.method)


@dataclasses.dataclass(frozen=True)
class Resize(_Resized):
  """Resizes to `size` without keeping the aspect.

  All methods treat pixels as squares, and the borders of the old and the new
  image coincide:

    bilinear  interpolates between the two nearest centres along each axis,
      without antialiasing, and rounds. `tf.image.resize` in the released code
      does not round, and big_vision's `resize` truncates.
    area  takes the mean of the pixels that a new one covers, and truncates, as
      big_vision's `resize_small` does. A whole multiple of the size repeats
      pixels.
    pillow_bicubic  does what Pillow does, and so what transformers does with
      resample=3; likewise pillow_nearest, pillow_lanczos, pillow_bilinear,
      pillow_box and pillow_hamming. All but nearest average where they shrink.

  With `antialias`, bilinear shrinks by the rounded mean of the covered pixels.
  No original implementation does that.
  """


@dataclasses.dataclass(frozen=True)
class ResizeSmall(_Resized):
  """Resizes the shorter side to `size` and keeps the aspect, up to rounding.

  For the methods see `Resize`; big_vision uses method='area'. For a pair, the
  larger side counts, so that a crop of that pair always fits. The longer side
  is rounded; Pillow's methods truncate it, as torchvision and transformers do.
  """

  def target(self, height: int, width: int) -> tuple[int, int]:
    large, small = max(self.size), min(height, width)
    if self.method in resizing.PILLOW:
      return height * large // small, width * large // small
    # In float32, and halves to even numbers, as TensorFlow rounds.
    scale = np.float32(large) / np.float32(small)
    return tuple(int(np.rint(np.float32(n) * scale)) for n in (height, width))


@dataclasses.dataclass(frozen=True)
class Pad:
  """Adds `n` pixels on each side: zeros, or the image mirrored (`reflect`)."""

  n: int
  mode: str = 'zeros'

  def __post_init__(self):
    _check_pixels(self, n=0)
    check_method(self.mode, PAD_MODES, 'mode')

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    sides = [self.n] * 4
    return with_channels(
      cv2.copyMakeBorder(image, *sides, PAD_MODES[self.mode])
    )


@dataclasses.dataclass(frozen=True)
class Shift:
  """Moves the image `y` pixels down and `x` to the right; below 0, up and left.

  The size stays. What leaves is lost, and the mirrored image (`reflect`) or
  zeros enter, so that nothing comes back on the other side.
  """

  y: int
  x: int
  mode: str = 'reflect'

  def __post_init__(self):
    _check_pixels(self, y=-_FARTHEST, x=-_FARTHEST)
    check_method(self.mode, PAD_MODES, 'mode')

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    height, width = image.shape[:2]
    if abs(self.y) >= height or abs(self.x) >= width:
      raise ValueError(
        f'shift({self.y}, {self.x}) leaves nothing of an image of'
        f' {height}x{width}'
      )
    top, left = max(-self.y, 0), max(-self.x, 0)
    sides = [max(self.y, 0), top, max(self.x, 0), left]
    padded = cv2.copyMakeBorder(image, *sides, PAD_MODES[self.mode])
    return with_channels(padded)[top:, left:][:height, :width]


@dataclasses.dataclass(frozen=True)
class Trim:
  """Removes `n` pixels from each side, such as the red frame of ObjectNet."""

  n: int

  def __post_init__(self):
    _check_pixels(self, n=0)

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    height, width = image.shape[:2]
    if min(height, width) <= 2 * self.n:
      raise ValueError(
        f'trim({self.n}) leaves nothing of an image of {height}x{width}'
      )
    return image[self.n : height - self.n, self.n : width - self.n]


@dataclasses.dataclass(frozen=True)
class Flip:
  """Mirrors the image horizontally with probability one half."""

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if rng.random() >= 0.5:
      return image
    # NumPy takes ten times as long to copy a mirrored view.
    return with_channels(cv2.flip(image, 1))
