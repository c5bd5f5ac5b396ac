"""Single changes of an image's colours and shapes, for `augment`.

They take and return uint8 [h, w, c] of the same shape, with one channel or
three, and never write into their input.

They are those of Pillow (`ImageOps`, `ImageEnhance`, and `Image.transform` with
NEAREST), computed with OpenCV, which is several times as fast. They are exact
but for those that need an image's grey values or neighbours: these differ by a
grey level at most, before a factor above 1 enlarges the difference.
"""

import math

import cv2
import numpy as np

from vit_jax.data.ops.decoding import with_channels

# Fills what a change of shape leaves empty, as in the TensorFlow code.
GREY = 128
_VALUE = np.arange(256)
# `cv2.addWeighted` rounds. With this added, it drops the fraction, as Pillow
# does; it does not go wrong at whole numbers, as -0.5 would.
_TRUNCATE = -0.498


def _look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Maps each value by a table: uint8 [256], or [c, 256] by channel."""
  if table.ndim == 2:
    table = np.ascontiguousarray(table.T)[None]  # [1, 256, c]
  return with_channels(cv2.LUT(image, table))


def _histograms(image: np.ndarray) -> np.ndarray:
  """Returns how often each channel has each value: int64 [c, 256]."""
  counts = [
    cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel()
    for channel in range(image.shape[2])
  ]
  return np.stack(counts).astype(np.int64)


def auto_contrast(image: np.ndarray) -> np.ndarray:
  """Stretches each channel's values to 0 to 255; a flat one stays."""
  tables = np.empty((image.shape[2], 256), np.uint8)
  for table, counts in zip(tables, _histograms(image), strict=True):
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1])
    scale = 255 / (high - low) if high > low else 1.0
    offset = -low * scale if high > low else 0.0
    table[:] = np.clip(_VALUE * scale + offset, 0, 255)
  return _look_up(image, tables)


def equalize(image: np.ndarray) -> np.ndarray:
  """Makes each channel's values about equally frequent.

  A channel stays if its values, without the largest, have fewer than 255
  pixels.
  """
  tables = np.empty((image.shape[2], 256), np.uint8)
  for table, counts in zip(tables, _histograms(image), strict=True):
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    below = np.cumsum(counts) - counts  # Pixels with smaller values.
    mapped = (below + step // 2) // step if step else _VALUE
    table[:] = np.minimum(mapped, 255)
  return _look_up(image, tables)


def invert(image: np.ndarray) -> np.ndarray:
  """Turns each value v into 255 - v."""
  return 255 - image


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
  """Keeps the highest `bits` of the 8 bits of each value."""
  return image & np.uint8(256 - 2 ** (8 - bits))


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
  """Inverts the values from `threshold` on."""
  table = np.where(threshold <= _VALUE, 255 - _VALUE, _VALUE)
  return _look_up(image, table.astype(np.uint8))


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
  """Adds a number to the values below 128; the sums are at most 255."""
  table = np.where(_VALUE < 128, _VALUE + addition, _VALUE)
  return _look_up(image, np.clip(table, 0, 255).astype(np.uint8))


def _blend_value(image: np.ndarray, value: int, factor: float) -> np.ndarray:
  """Returns value + factor * (image - value)."""
  # Pillow computes in float32, which decides the last bit.
  value, factor = np.float32(value), np.float32(factor)
  table = value + factor * (_VALUE.astype(np.float32) - value)
  return _look_up(image, np.clip(table, 0, 255).astype(np.uint8))


def _blend(image: np.ndarray, other: np.ndarray, factor: float) -> np.ndarray:
  """Returns other + factor * (image - other)."""
  return with_channels(
    cv2.addWeighted(image, factor, other, 1 - factor, _TRUNCATE)
  )


def _grey(image: np.ndarray) -> np.ndarray:
  """Returns the luminance: [h, w, 3] -> [h, w]."""
  return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
  """Multiplies all values; a factor of 1 changes nothing, here and below."""
  return _blend_value(image, 0, factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
  """Multiplies the distance of all values from the image's mean grey."""
  grey = _grey(image) if image.shape[2] == 3 else image
  return _blend_value(image, int(cv2.mean(grey)[0] + 0.5), factor)


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
  """Multiplies the distance of each pixel from its grey."""
  if image.shape[2] == 1:
    return image
  grey = cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)
  return _blend(image, grey, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
  """Multiplies the distance of each pixel from a mean of its surroundings.

  In the mean, a pixel counts 5 times, and its 8 neighbours once. The pixels at
  the border stay.
  """
  kernel = np.ones((3, 3), np.float32)
  kernel[1, 1] = 5
  smooth = with_channels(
    cv2.filter2D(image, -1, kernel / 13, borderType=cv2.BORDER_REPLICATE)
  )
  for border in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
    smooth[border] = image[border]
  return _blend(image, smooth, factor)


def shift_hue(image: np.ndarray, turn: float) -> np.ndarray:
  """Turns the hues; 1 is a whole turn, and one of 256 the smallest."""
  steps = round(256 * turn) % 256
  if image.shape[2] == 1 or not steps:
    return image
  hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
  hsv[:, :, 0] += np.uint8(steps)  # Wraps around.
  return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _warp(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
  """Takes, for each pixel, the one nearest to matrix @ (x, y, 1), or grey.

  x and y count from the centre of the first pixel.
  """
  height, width = image.shape[:2]
  return with_channels(
    cv2.warpAffine(
      image,
      np.float64(matrix),
      (width, height),
      flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
      borderMode=cv2.BORDER_CONSTANT,
      borderValue=(GREY,) * 4,
    )
  )


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
  """Turns the image around its centre, counterclockwise if positive."""
  y, x = (np.array(image.shape[:2]) - 1) / 2
  cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
  return _warp(
    image,
    [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]],
  )


def shear_x(image: np.ndarray, slope: float) -> np.ndarray:
  """Moves row y, counted from the upper border, left by slope * y pixels."""
  # The upper border is half a pixel above the first row's centre.
  return _warp(image, [[1, slope, slope / 2], [0, 1, 0]])


def shear_y(image: np.ndarray, slope: float) -> np.ndarray:
  """Moves column x, counted from the left border, up by slope * x pixels."""
  return _warp(image, [[1, 0, 0], [slope, 1, slope / 2]])


def translate(image: np.ndarray, down: int, right: int) -> np.ndarray:
  """Moves the image by whole pixels; negative ones are up and left."""
  moved = np.full_like(image, GREY)
  height, width = image.shape[:2]
  if abs(down) < height and abs(right) < width:
    to, source = (
      np.s_[
        max(0, sign * down) : height + min(0, sign * down),
        max(0, sign * right) : width + min(0, sign * right),
      ]
      for sign in (1, -1)
    )
    moved[to] = image[source]
  return moved


def cut_out(
  image: np.ndarray, half: int, rng: np.random.Generator
) -> np.ndarray:
  """Greys a square of 2 * half pixels around a random pixel (1708.04552)."""
  height, width = image.shape[:2]
  y, x = int(rng.integers(height)), int(rng.integers(width))
  image = image.copy()
  image[max(0, y - half) : y + half, max(0, x - half) : x + half] = GREY
  return image
