"""Changes of colours and shapes, random erasing and colour jitter.

`ops.OPS` names the classes in preprocessings. Classes and functions take and
return uint8 [h, w, c] of the same shape, with one channel or three, and never
write into their input.

The single changes are those of Pillow (`ImageOps`, `ImageEnhance`, and
`Image.transform` with NEAREST), computed with OpenCV, which is several times as
fast. They are exact but for those that need an image's grey values or
neighbours: these differ by a grey level at most, before a factor above 1
enlarges the difference.
"""

import dataclasses
import math
from collections.abc import Callable

import cv2
import numpy as np

from vit_jax.data.ops import geometry
from vit_jax.data.ops.crops import draw_box
from vit_jax.data.ops.decoding import with_channels

# Fills what a change of shape leaves empty, as in the TensorFlow code.
GREY = 128
_VALUE = np.arange(256)
# `cv2.addWeighted` rounds. With this added, it drops the fraction, as Pillow
# does; it does not go wrong at whole numbers, as -0.5 would.
_TRUNCATE = -0.498
# What `RandomErasing` draws between.
_AREAS = 0.02, 1 / 3
_ASPECTS = 0.3, 1 / 0.3
# Mean and deviation of ImageNet's red, green and blue.
_IMAGENET = 255 * np.float32([(0.485, 0.456, 0.406), (0.229, 0.224, 0.225)])


def _look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Maps each value by a table: uint8 [256], or [c, 256] by channel."""
  if table.ndim == 2:
    table = np.ascontiguousarray(table.T)[None]  # [1, 256, c]
  return with_channels(cv2.LUT(image, table))


def _stretch(
  image: np.ndarray, table_of: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
  """Maps each channel by a table of how often it has each value, int64 [256].

  The tables' values are cut to 0 to 255.
  """
  tables = []
  for channel in range(image.shape[2]):
    counts = cv2.calcHist([image], [channel], None, [256], [0, 256]).ravel()
    tables.append(np.clip(table_of(counts.astype(np.int64)), 0, 255))
  return _look_up(image, np.stack(tables).astype(np.uint8))


def auto_contrast(image: np.ndarray) -> np.ndarray:
  """Stretches each channel's values to 0 to 255; a flat one stays."""

  def table(counts):
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1])
    scale = 255 / (high - low) if high > low else 1.0
    return _VALUE * scale + (-low * scale if high > low else 0.0)

  return _stretch(image, table)


def equalize(image: np.ndarray) -> np.ndarray:
  """Makes each channel's values about equally frequent.

  A channel stays if its values, without the largest, have fewer than 255
  pixels.
  """

  def table(counts):
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    below = np.cumsum(counts) - counts  # Pixels with smaller values.
    return (below + step // 2) // step if step else _VALUE

  return _stretch(image, table)


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


def translate(image: np.ndarray, steps: int, axis: int) -> np.ndarray:
  """Moves the image down (axis 0) or right (1); back if steps are negative."""
  moved = np.full_like(image, GREY)
  length = image.shape[axis]
  if abs(steps) < length:
    to, source = moved.swapaxes(0, axis), image.swapaxes(0, axis)
    rest = length - abs(steps)
    first, taken = max(0, steps), max(0, -steps)
    to[first : first + rest] = source[taken : taken + rest]
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


def check_channels(image: np.ndarray) -> None:
  """Raises ValueError unless an image has 1 or 3 channels."""
  if image.shape[2] not in (1, 3):
    raise ValueError(
      f'an image of {image.shape[2]} channels has no colours to change; '
      "colour_jitter, three_augment, rand_augment, timm's and"
      " random_erasing(noise='normal') need 1 or 3 channels"
    )


@dataclasses.dataclass(frozen=True)
class RandomErasing:
  """Replaces a random rectangle with noise (arXiv:1708.04896, Algorithm 1).

  The area, a fraction of the image's, is uniform in `_AREAS`. The logarithm of
  the aspect (width / height) is uniform in that of `_ASPECTS`. The place is
  uniform. If ten rectangles do not fit, nothing is erased.

  Differs from the paper: a probability of 0.5, areas up to 0.4, and a uniform
  aspect, which makes one direction more frequent. The values here are those of
  timm and DeiT. Differs from timm: normal noise is cut to 0 to 255, which
  changes 3% of the values, and rounded.

  Attributes:
    p: the probability.
    noise: `uniform` in 0 to 255, as in the paper; or `normal`, with ImageNet's
      mean and deviation for each channel, which is mode 'pixel' of timm and so
      of DeiT. An image of one channel gets their means over the colours.
  """

  p: float = 0.25
  noise: str = 'uniform'

  def __post_init__(self):
    if not 0 <= self.p <= 1:
      raise ValueError(f'p must lie in [0, 1], got {self.p!r}')
    geometry.check_method(self.noise, ('uniform', 'normal'), 'noise')

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if self.noise == 'normal':
      check_channels(image)
    if rng.random() >= self.p:
      return image
    # timm takes no rectangle that is as long as the image.
    spare = int(self.noise == 'normal')
    box = draw_box(image.shape[:2], _AREAS, _ASPECTS, rng, spare)
    if not box:
      return image
    top, left, height, width = box
    noise = self._draw((height, width, image.shape[2]), rng)
    image = image.copy()
    image[top : top + height, left : left + width] = noise
    return image

  def _draw(
    self, shape: tuple[int, int, int], rng: np.random.Generator
  ) -> np.ndarray:
    if self.noise == 'uniform':
      return rng.integers(0, 256, shape, np.uint8)
    mean, deviation = _IMAGENET if shape[2] == 3 else _IMAGENET.mean(axis=1)
    noise = mean + deviation * rng.standard_normal(shape, np.float32)
    return np.clip(np.rint(noise), 0, 255).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class ColourJitter:
  """Changes brightness, contrast, saturation and hue, in a random order.

  The factors of the first three are uniform in [1 - value, 1 + value], but at
  least 0. The hue turns by a uniform part of a turn in [-value, value]. A value
  of 0 leaves its change out. These are the definitions of torchvision's
  `ColorJitter`. In an image of one channel, saturation and hue change nothing.
  """

  brightness: float = 0.4
  contrast: float = 0.4
  saturation: float = 0.4
  hue: float = 0.0

  def __post_init__(self):
    for name in ('brightness', 'contrast', 'saturation'):
      value = getattr(self, name)
      if not 0 <= value < math.inf:
        raise ValueError(f'{name} must be at least 0, got {value!r}')
    if not 0 <= self.hue <= 0.5:
      raise ValueError(f'hue must lie in [0, 0.5] turns, got {self.hue!r}')

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    check_channels(image)
    kinds = (
      (brightness, self.brightness),
      (contrast, self.contrast),
      (saturation, self.saturation),
      (shift_hue, self.hue),
    )
    for index in rng.permutation(4):
      change, size = kinds[index]
      if size:
        middle = 0 if change is shift_hue else 1
        low = middle - size if change is shift_hue else max(0, 1 - size)
        image = change(image, rng.uniform(low, middle + size))
    return image
