"""Compares the pixels of two images that may show the same picture.

Both are squeezed to a square, one is aligned with the other, and the details of
the two are correlated.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.dedup import hashing

# The side of the square is that of the smaller image, between these.
_SMALLEST, _LARGEST = 16, hashing.LEAST
# Details are what is left of an image without its average over about this part
# of a side. The average itself is alike in any two pictures of a white sky.
_BLUR = 1 / 16
# Blur, in pixels, and most iterations of the alignment: coarse, then fine.
_STEPS = ((5, 30), (3, 30))
_UNTIL = cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS
_TOLERANCE = 1e-4
# The most that a corner may move from where the hash has found it.
_MOST = 0.15
# The least part of the square that both images must show.
_LEAST_SHARED = 0.5
# Grey levels: details with a smaller standard deviation are noise.
_LEAST_DETAIL = 1.0
# Small images have few details, which may be alike by chance, so their
# correlation counts less: by this at 32 px, by nothing at 64.
_PENALTY = 0.08
# Once a view correlates like this, the others need no look.
_CERTAIN = 0.95


def correlation(
  first: np.ndarray, second: np.ndarray, views: Sequence[int]
) -> tuple[float, int]:
  """Returns how well the details of two images correlate, and in which view.

  Args:
    first: uint8 [h, w], which the hash took as a whole.
    second: uint8 [h, w], of which `views` were taken.
    views: numbers of views, the likeliest first, as in `hashing.of_views`: from
      `len(VIEWS)` on, `second` is mirrored.

  Returns:
    The highest of the views' correlations, in [0, 1], and its view. That of
    images below 64 px is reduced. 0 also stands for pictures without details,
    whose correlation would be one of noise.
  """
  side = min(*first.shape, *second.shape, _LARGEST)
  side = max(side, _SMALLEST)
  fixed, best = hashing.square(first, side), (0.0, views[0])
  for view in views:
    mirrored, number = divmod(view, len(hashing.VIEWS))
    moved = cv2.flip(second, 1) if mirrored else second
    moved = hashing.square(moved, side)
    top, left, scale = hashing.VIEWS[number]
    # Pixel i covers [i, i + 1), so its centre is at i + 1/2.
    x, y = (place * side + (scale - 1) / 2 for place in (left, top))
    start = np.array([[scale, 0, x], [0, scale, y]], np.float32)
    warp = _align(fixed, moved, start)
    penalty = _PENALTY * (_LARGEST - side) / 32
    score = max(0.0, _score(fixed, moved, warp) - penalty)
    if score > best[0]:
      best = score, view
    if score >= _CERTAIN:
      break
  return best


def _align(
  fixed: np.ndarray, moved: np.ndarray, start: np.ndarray
) -> np.ndarray:
  """Improves an affine map from pixels of `fixed` to those of `moved`.

  This maximises the correlation (Evangelidis and Psarakis, 2008).
  """
  last = len(fixed) - 1
  corners = np.array([[0, last, 0, last], [0, 0, last, last], [1, 1, 1, 1]])
  warp = start
  for blur, iterations in _STEPS:
    criteria = (_UNTIL, iterations, _TOLERANCE)
    try:
      _, found = cv2.findTransformECC(
        *(fixed, moved, warp.copy(), cv2.MOTION_AFFINE, criteria, None, blur)
      )
    except cv2.error:  # It does not converge: these are different pictures.
      break
    if np.abs((found - start) @ corners).max() > _MOST * len(fixed):
      break
    warp = found
  return warp


def _score(fixed: np.ndarray, moved: np.ndarray, warp: np.ndarray) -> float:
  """Returns the correlation of details where both images show something."""
  size, flags = fixed.shape[::-1], cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
  inside = cv2.warpAffine(np.ones_like(moved), warp, size, flags=flags) > 0.99
  if inside.mean() < _LEAST_SHARED:
    return 0.0
  moved = cv2.warpAffine(
    moved, warp, size, flags=flags, borderMode=cv2.BORDER_REPLICATE
  )
  one, other = (_details(image)[inside] for image in (fixed, moved))
  one, other = one - one.mean(), other - other.mean()
  if min(one.std(), other.std()) < _LEAST_DETAIL:
    return 0.0
  return float((one * other).mean() / (one.std() * other.std()))


def _details(image: np.ndarray) -> np.ndarray:
  """Returns an image without its local average, float32 [side, side]."""
  deviation = _BLUR * len(image)
  around = round(3 * deviation)
  # Mirrored in value, too, at the border: a sky that grows brighter upwards
  # would otherwise have details there, the same as any other sky.
  larger = np.pad(image, around, mode='reflect', reflect_type='odd')
  average = cv2.GaussianBlur(larger, (0, 0), deviation)
  return image - average[around:-around, around:-around]
