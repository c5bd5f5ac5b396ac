"""Perceptual hashes: 128 signs of an image's lowest frequencies.

A hash hardly changes if an image is compressed, resized, or made grey, darker
or richer in contrast. It changes if the image is cropped. So an image of the
query side, where there are few, has a hash for each way in which the other
image may be cropped:

- whole;
- 9 crops that keep 90% of each side, in case the other image is a crop of this
  one;
- 9 enlargements by 1 / 0.9, in case this one is a crop of the other. What would
  be outside is unknown; the pixels of the border are repeated instead.

The 9 places are 5% of a side apart, so any place is within 2.5% of one of them.

Axes: V views, B bytes of a hash (16).
"""

import cv2
import numpy as np

from vit_jax.data.ops import decoding
from vit_jax.data.ops.decoding import CorruptImageError as CorruptImageError

BITS = 128
# The side of the square that is transformed.
_SIDE = 32
# JPEGs are decoded smaller, but never below this many pixels. Comparisons of
# pixels need as many.
LEAST = 64
_KEPT = 0.9
# Grey levels: below this standard deviation of the small square, the signs are
# those of noise.
_FLAT = 3.0
# Frequencies by the sum of their two numbers, without the constant one.
_ORDER = sorted(
  ((v, u) for v in range(_SIDE) for u in range(_SIDE) if v + u),
  key=lambda vu: (sum(vu), vu),
)[:BITS]
_ROWS, _COLUMNS = (np.array(axis) for axis in zip(*_ORDER, strict=True))


_STEPS = [step * (1 - _KEPT) / 2 for step in range(3)]
_PLACES = [(top, left) for top in _STEPS for left in _STEPS]
# What each view shows, in parts of the sides: its top, negative outside of the
# image; its left; and how many sides it spans.
VIEWS = (
  (0.0, 0.0, 1.0),
  *((top, left, _KEPT) for top, left in _PLACES),
  *((-top / _KEPT, -left / _KEPT, 1 / _KEPT) for top, left in _PLACES),
)


def decode(image: bytes | np.ndarray, *, upright: bool) -> np.ndarray:
  """Returns an image in grey, a JPEG reduced: uint8 [h, w].

  Args:
    image: as a record holds it.
    upright: whether to rotate it by its EXIF orientation.

  Raises:
    CorruptImageError: the image cannot be decoded.
  """
  known = decoding.header(image)
  shrink = 1
  while shrink < 8 and min(known.height, known.width) >= 2 * LEAST * shrink:
    shrink *= 2
  options = {'upright': upright, 'known': known, 'shrink': shrink}
  return decoding.decode(image, 1, **options)[:, :, 0]


def square(grey: np.ndarray, side: int) -> np.ndarray:
  """Resizes an image to a square, float32 [side, side]."""
  shrinks = min(grey.shape) >= side
  how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
  return cv2.resize(grey, (side, side), interpolation=how).astype(np.float32)


def is_flat(grey: np.ndarray) -> bool:
  """Whether an image has so little contrast that its hash would be noise."""
  return float(square(grey, _SIDE).std()) < _FLAT


def of_whole(grey: np.ndarray) -> np.ndarray:
  """Returns the hash of an image, uint8 [B]."""
  frequencies = cv2.dct(square(grey, _SIDE))
  return np.packbits(frequencies[_ROWS, _COLUMNS] > 0)


def of_views(grey: np.ndarray, *, flips: bool) -> np.ndarray:
  """Returns the hashes of an image's views, uint8 [V, B].

  Args:
    grey: uint8 [h, w].
    flips: whether to add the views of the mirrored image, behind the others.
  """
  images = [grey, cv2.flip(grey, 1)] if flips else [grey]
  return np.stack([of_whole(_cut(i, *view)) for i in images for view in VIEWS])


def _cut(grey: np.ndarray, y: float, x: float, scale: float) -> np.ndarray:
  """Returns what a view shows; the border's pixels continue outside."""
  height, width = grey.shape
  top, bottom = round(y * height), round((y + scale) * height)
  left, right = round(x * width), round((x + scale) * width)
  if scale <= 1:
    return grey[top : max(bottom, top + 1), left : max(right, left + 1)]
  border = (-top, bottom - height, -left, right - width)
  return cv2.copyMakeBorder(grey, *border, cv2.BORDER_REPLICATE)
