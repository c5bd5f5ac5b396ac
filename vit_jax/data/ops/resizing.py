"""Resizes uint8 images, and hands them to Pillow."""

from collections.abc import Callable

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.ops.decoding import with_channels

PILLOW = {f'pillow_{f.name.lower()}': f for f in Image.Resampling}
# What 'random' draws from, with equal chances, as timm does.
DRAWN = 'pillow_bilinear', 'pillow_bicubic'


def draw_method(method: str, rng: np.random.Generator) -> str:
  """Returns a method: the given one, or one of two in place of 'random'."""
  return DRAWN[rng.integers(2)] if method == 'random' else method


def through_pillow(
  image: np.ndarray, change: Callable[[Image.Image], Image.Image]
) -> np.ndarray:
  """Applies a function of a Pillow image, of mode L or RGB, to [h, w, 1|3]."""
  flat = image[:, :, 0] if image.shape[2] == 1 else image
  # Pillow takes several times as long to copy a part of an array.
  made = change(Image.fromarray(np.ascontiguousarray(flat)))
  return with_channels(np.array(made))


def resize(
  image: np.ndarray,
  size: tuple[int, int],
  antialias: bool = False,
  method: str = 'bilinear',
) -> np.ndarray:
  """Resizes to (height, width); see `geometry.Resize`.

  Unlike the released code, this rounds to uint8, so that images take a quarter
  of the memory on their way to the device.
  """
  if image.shape[:2] == size:
    return image
  if method == 'area':
    return _resize_area(image, size)
  if method in PILLOW:
    return _resize_by_pillow(image, size, PILLOW[method])
  shrinks = image.shape[0] >= size[0] and image.shape[1] >= size[1]
  method = cv2.INTER_AREA if antialias and shrinks else cv2.INTER_LINEAR
  return with_channels(cv2.resize(image, size[::-1], interpolation=method))


def _resize_by_pillow(
  image: np.ndarray, size: tuple[int, int], resample: Image.Resampling
) -> np.ndarray:
  if image.shape[2] in (1, 3):
    return through_pillow(image, lambda made: made.resize(size[::-1], resample))
  # A channel at a time: Pillow would take a fourth one for transparency.
  channels = (Image.fromarray(channel) for channel in np.moveaxis(image, 2, 0))
  return np.dstack([each.resize(size[::-1], resample) for each in channels])


def _resize_area(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Makes each new pixel the truncated mean of the area that it covers."""
  height, width = image.shape[:2]
  # OpenCV's INTER_AREA averages an area only where it shrinks.
  smaller = min(height, size[0]), min(width, size[1])
  result = image.astype(np.float32)
  if smaller != (height, width):
    result = with_channels(
      cv2.resize(result, smaller[::-1], interpolation=cv2.INTER_AREA)
    )
  for axis in (0, 1):
    result = _enlarge(result, size[axis], axis)
  # A float32 sum may be just below a whole number, which truncation would lose.
  return (result + 1e-3).astype(np.uint8)


def _enlarge(image: np.ndarray, length: int, axis: int) -> np.ndarray:
  """Enlarges along an axis; a new pixel covers one or two old ones."""
  old = image.shape[axis]
  if old == length:
    return image
  # The unit is 1 / (old * length), so integers are exact: new pixels are `old`
  # wide.
  starts = np.arange(length) * old
  first = starts // length
  # The share of a new pixel that lies in the first of its two old pixels.
  share = np.minimum((first + 1) * length - starts, old) / old
  if (share == 1).all():
    return np.take(image, first, axis)
  share = np.float32(share).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
  second = np.minimum(first + 1, old - 1)
  return share * np.take(image, first, axis) + (1 - share) * np.take(
    image, second, axis
  )
