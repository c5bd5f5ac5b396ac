"""Crops, resizes, shifts and flips: where the pixels of a result come from."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from vit_jax.data.ops import resizing
from vit_jax.data.ops.decoding import with_channels

Size = int | tuple[int, int]
Op = Callable[[np.ndarray, np.random.Generator], np.ndarray]

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


def check_ranges(op) -> None:
  """Checks the ranges of the area and of the aspect that an operation draws."""
  if not 0 < op.min_area <= op.max_area <= 1:
    raise ValueError(
      '0 < min_area <= max_area <= 1 does not hold for '
      f'min_area={op.min_area}, max_area={op.max_area}'
    )
  if not 0 < op.min_aspect <= op.max_aspect:
    raise ValueError(
      '0 < min_aspect <= max_aspect does not hold for '
      f'min_aspect={op.min_aspect}, max_aspect={op.max_aspect}'
    )


def _check_pixels(op, **least: int) -> None:
  """Checks that attributes of an operation are whole and large enough."""
  for name, low in least.items():
    value = getattr(op, name)
    if type(value) is not int or value < low:
      raise ValueError(f'{name}={value!r} must be a whole number of pixels')


class Region(NamedTuple):
  """The part of an image that an operation uses, and what it makes of it.

  Attributes:
    top, left, height, width: of the part, in pixels.
    size: (height, width) that the part is resized to; None if it is not.
  """

  top: int
  left: int
  height: int
  width: int
  size: tuple[int, int] | None = None


class Regional:
  """An operation that uses a region, known before the image is decoded."""

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    """Returns the region of an image of this size."""
    raise NotImplementedError

  def shrink(self, region: Region) -> int:
    """Returns by how much the image may shrink first: 1, 2, 4 or 8.

    The region must stay as large as the result.
    """
    if region.size is None:
      return 1
    fits = min(region.height // region.size[0], region.width // region.size[1])
    return max(n for n in (1, 2, 4, 8) if n <= max(1, fits))

  def make(self, image: np.ndarray, region: Region) -> np.ndarray:
    """Makes the result from an image and the region there."""
    top, left, height, width, size = region
    if (height, width) != image.shape[:2]:
      image = image[top : top + height, left : left + width]
    return image if size is None else self._resize(image, size)

  def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return resizing.resize(image, size)

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return self.make(image, self.region(*image.shape[:2], rng))


def _crop_room(
  height: int, width: int, size: tuple[int, int]
) -> tuple[int, int]:
  """Returns how many pixels a crop of `size` can move down and right."""
  down, right = height - size[0], width - size[1]
  if down < 0 or right < 0:
    raise ValueError(
      f'an image of {height}x{width} (height x width) is '
      f'smaller than the crop of {size[0]}x{size[1]}; resize it first, as in '
      'resize_small(448)|random_crop(384)'
    )
  return down, right


@dataclasses.dataclass(frozen=True)
class _Sized(Regional):
  """An operation whose result has `size`, stored as (height, width)."""

  size: Size

  def __post_init__(self):
    object.__setattr__(self, 'size', pair(self.size))


@dataclasses.dataclass(frozen=True)
class _Resized(_Sized):
  """An operation that resizes; `Resize` explains how."""

  _: dataclasses.KW_ONLY
  method: str = 'bilinear'
  antialias: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.method not in METHODS:
      raise ValueError(
        f'unknown method {self.method!r}; choose from {list(METHODS)}'
      )
    if self.antialias and self.method != 'bilinear':
      raise ValueError(
        f'antialias is for bilinear, but method={self.method!r} settles it;'
        ' remove antialias'
      )

  def shrink(self, region: Region) -> int:
    # All others have their own ways to average.
    exact = self.antialias or self.method != 'bilinear'
    return 1 if exact else super().shrink(region)

  def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
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

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    return Region(0, 0, height, width, self.size)


@dataclasses.dataclass(frozen=True)
class ResizeSmall(_Resized):
  """Resizes the shorter side to `size` and keeps the aspect, up to rounding.

  For the methods see `Resize`; big_vision uses method='area'. For a pair, the
  larger side counts, so that a crop of that pair always fits. The longer side
  is rounded; Pillow's methods truncate it, as torchvision and transformers do.
  """

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    large, small = max(self.size), min(height, width)
    if self.method in resizing.PILLOW:
      size = height * large // small, width * large // small
    else:
      # In float32, and halves to even numbers, as TensorFlow rounds.
      scale = np.float32(large) / np.float32(small)
      size = tuple(int(np.rint(np.float32(n) * scale)) for n in (height, width))
    return Region(0, 0, height, width, size)


@dataclasses.dataclass(frozen=True)
class InceptionCrop(_Sized):
  """Crops a random area of random aspect (width / height), resizes to `size`.

  The aspect is uniform in its range. Then the height is uniform among the whole
  numbers that fit the image and keep the area (a fraction of the image's) in
  range. The released code's crop, TensorFlow's `sample_distorted_bounding_box`,
  draws the same sizes, and so prefers small areas. Its places differ: it never
  takes the last row or column of places. If a hundred aspects do not fit, the
  whole image is used. The resize is bilinear, without antialiasing.
  """

  _: dataclasses.KW_ONLY
  min_area: float = 0.05
  max_area: float = 1.0
  min_aspect: float = 3 / 4
  max_aspect: float = 1.33

  def __post_init__(self):
    super().__post_init__()
    check_ranges(self)

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    smallest = self.min_area * height * width
    largest = self.max_area * height * width
    for _ in range(100):
      aspect = rng.uniform(self.min_aspect, self.max_aspect)
      low = round(math.sqrt(smallest / aspect))
      # The largest height whose rounded width still fits.
      high = math.ceil((width + 0.5) / aspect) - 1
      high = min(round(math.sqrt(largest / aspect)), high, height)
      h = int(rng.integers(low, high + 1)) if low < high else high
      # Rounding may have moved the area out of range by one row.
      h += h * round(h * aspect) < smallest
      h -= h * round(h * aspect) > largest
      w = round(h * aspect)
      if smallest <= h * w <= largest and 0 < h <= height and 0 < w <= width:
        top = int(rng.integers(height - h + 1))
        left = int(rng.integers(width - w + 1))
        return Region(top, left, h, w, self.size)
    return Region(0, 0, height, width, self.size)


@dataclasses.dataclass(frozen=True)
class RandomCrop(_Sized):
  """Crops `size` at a random place; a smaller image raises ValueError."""

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    down, right = _crop_room(height, width, self.size)
    top, left = int(rng.integers(down + 1)), int(rng.integers(right + 1))
    return Region(top, left, *self.size)


@dataclasses.dataclass(frozen=True)
class CentralCrop(_Sized):
  """Crops `size` from the middle; a smaller image raises ValueError."""

  def region(self, height: int, width: int, rng: np.random.Generator) -> Region:
    down, right = _crop_room(height, width, self.size)
    return Region(down // 2, right // 2, *self.size)


def _check_mode(mode: str) -> None:
  if mode not in PAD_MODES:
    raise ValueError(f'unknown mode {mode!r}; choose from {sorted(PAD_MODES)}')


@dataclasses.dataclass(frozen=True)
class Pad:
  """Adds `n` pixels on each side: zeros, or the image mirrored (`reflect`)."""

  n: int
  mode: str = 'zeros'

  def __post_init__(self):
    _check_pixels(self, n=0)
    _check_mode(self.mode)

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
    _check_mode(self.mode)

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
