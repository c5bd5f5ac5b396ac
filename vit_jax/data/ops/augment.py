"""Random changes of colours and shapes: RandAugment, erasing, colour jitter.

`ops.OPS` names them in preprocessings. They take and return uint8 [h, w, c] of
the same shape, with one channel or three, and never write into their input.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from vit_jax.data.ops import changes, geometry


def _check_channels(image: np.ndarray) -> None:
  if image.shape[2] not in (1, 3):
    raise ValueError(
      f'an image of {image.shape[2]} channels has no colours to change; '
      'rand_augment and colour_jitter need 1 or 3 channels'
    )


_LARGEST_M = 30
# The lengths in pixels below are those of the TensorFlow code, for this size.
_SIDE = 224


def _either(size: float, rng: np.random.Generator) -> float:
  """Returns `size` or its negative."""
  return size if rng.random() < 0.5 else -size


def _factor(x: float) -> float:
  """Returns the factor of a change of colours."""
  return 0.1 + 1.8 * x


def _steps(
  image: np.ndarray, axis: int, x: float, rng: np.random.Generator
) -> int:
  """Returns by how many pixels to move an image along an axis."""
  return round(_either(100 * x * image.shape[axis] / _SIDE, rng))


# Name -> function of an image, a tenth of the magnitude, and a generator.
RAND_AUGMENT: dict[
  str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]
] = {
  'auto_contrast': lambda image, x, rng: changes.auto_contrast(image),
  'equalize': lambda image, x, rng: changes.equalize(image),
  'invert': lambda image, x, rng: changes.invert(image),
  'rotate': lambda image, x, rng: changes.rotate(image, _either(30 * x, rng)),
  # The next two become weaker as the magnitude grows, as in the source. From
  # 20 and from 10 on, they change nothing.
  'posterize': lambda image, x, rng: changes.posterize(
    image, min(8, int(4 * x))
  ),
  'solarize': lambda image, x, rng: changes.solarize(image, int(256 * x)),
  'saturation': lambda image, x, rng: changes.saturation(image, _factor(x)),
  'contrast': lambda image, x, rng: changes.contrast(image, _factor(x)),
  'brightness': lambda image, x, rng: changes.brightness(image, _factor(x)),
  'sharpness': lambda image, x, rng: changes.sharpness(image, _factor(x)),
  'shear_x': lambda image, x, rng: changes.shear_x(
    image, _either(0.3 * x, rng)
  ),
  'shear_y': lambda image, x, rng: changes.shear_y(
    image, _either(0.3 * x, rng)
  ),
  'translate_x': lambda image, x, rng: changes.translate(
    image, 0, _steps(image, 1, x, rng)
  ),
  'translate_y': lambda image, x, rng: changes.translate(
    image, _steps(image, 0, x, rng), 0
  ),
  'cut_out': lambda image, x, rng: changes.cut_out(
    image, round(40 * x * min(image.shape[:2]) / _SIDE), rng
  ),
  'solarize_add': lambda image, x, rng: changes.solarize_add(
    image, int(110 * x)
  ),
}
_CHANGES = tuple(RAND_AUGMENT.values())


@dataclasses.dataclass(frozen=True)
class RandAugment:
  """Applies `n` random changes of magnitude `m` (arXiv:1909.13719).

  Each change is drawn uniformly, with repetition, from `RAND_AUGMENT`. These
  16, and their strength at a magnitude, are those of the TensorFlow code of
  EfficientNet by the paper's authors. AugReg (arXiv:2106.10270) trained with
  it, through big_vision's `randaug`: n = 2, and m = 0, 10, 15 or 20. The scale
  has 10 levels, but may be exceeded. A magnitude of 0 is not the identity:
  saturation, contrast, brightness and sharpness have a factor of 0.1 there, and
  of 1 at m = 5.

  Differs from that code: lengths in pixels (a translation, a side of what is
  cut out) are in proportion to the image, and equal at 224 px. Contrast is
  relative to the mean grey, as in Pillow; there, it is relative to a 256th of
  the number of pixels, 196 at 224 px. Shears begin half a pixel earlier.
  """

  n: int = 2
  m: float = 10

  def __post_init__(self):
    if type(self.n) is not int or self.n < 0:
      raise ValueError(f'n must be a non-negative integer, got {self.n!r}')
    if type(self.m) not in (int, float) or not 0 <= self.m <= _LARGEST_M:
      raise ValueError(
        f'm must be a number from 0 to {_LARGEST_M}, got {self.m!r}'
      )

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    _check_channels(image)
    for index in rng.integers(len(_CHANGES), size=self.n):
      image = _CHANGES[index](image, self.m / 10, rng)
    return image


@dataclasses.dataclass(frozen=True)
class RandomErasing:
  """Replaces a random rectangle with noise (arXiv:1708.04896, Algorithm 1).

  The area, a fraction of the image's, is uniform in its range, and so is the
  logarithm of the aspect (width / height). The place is uniform. If ten
  rectangles do not fit, nothing is erased. The noise is uniform in 0 to 255.

  Differs from the paper: a probability of 0.5, areas up to 0.4, and a uniform
  aspect, which makes one direction more frequent. The values here are those of
  timm and DeiT.

  Attributes:
    p: the probability.
    colour: what each value becomes, 0 to 255; None draws noise.
  """

  p: float = 0.25
  _: dataclasses.KW_ONLY
  min_area: float = 0.02
  max_area: float = 1 / 3
  min_aspect: float = 0.3
  max_aspect: float = 1 / 0.3
  colour: int | None = None

  def __post_init__(self):
    if not 0 <= self.p <= 1:
      raise ValueError(f'p must lie in [0, 1], got {self.p!r}')
    geometry.check_ranges(self)
    if self.colour is not None and not 0 <= self.colour <= 255:
      raise ValueError(f'colour must lie in 0 to 255, got {self.colour!r}')

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if rng.random() >= self.p:
      return image
    rows, columns, channels = image.shape
    for _ in range(10):
      area = rows * columns * rng.uniform(self.min_area, self.max_area)
      aspect = math.exp(
        rng.uniform(math.log(self.min_aspect), math.log(self.max_aspect))
      )
      height, width = (round(math.sqrt(area * a)) for a in (1 / aspect, aspect))
      if 0 < height <= rows and 0 < width <= columns:
        top = int(rng.integers(rows - height + 1))
        left = int(rng.integers(columns - width + 1))
        value = self.colour
        if value is None:
          value = rng.integers(0, 256, (height, width, channels), np.uint8)
        image = image.copy()
        image[top : top + height, left : left + width] = value
        return image
    return image


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
    _check_channels(image)
    for index in rng.permutation(4):
      change, size = (
        (changes.brightness, self.brightness),
        (changes.contrast, self.contrast),
        (changes.saturation, self.saturation),
        (changes.shift_hue, self.hue),
      )[index]
      if size:
        if change is changes.shift_hue:
          low, high = -size, size
        else:
          low, high = max(0, 1 - size), 1 + size
        image = change(image, rng.uniform(low, high))
    return image
