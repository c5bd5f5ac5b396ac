"""Policies, which draw among changes: RandAugment, timm's, and 3-Augment.

`ops.OPS` names the classes in preprocessings. They take and return uint8
[h, w, c] of the same shape, with one channel or three.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from vit_jax.data.ops import augment, geometry, resizing

_LARGEST_M = 30
# The lengths in pixels of `RAND_AUGMENT` are those of the TensorFlow code, for
# this size.
_SIDE = 224
_UNIFORM = 100  # timm: a larger deviation makes the magnitude uniform.
# Fills what a change of shape leaves empty in timm: ImageNet's mean, in colour
# and in grey.
_MEAN = {3: (124, 116, 104), 1: 117}
# Parts of timm's string, with their defaults.
_PARTS = {'m': 10, 'n': 2, 'mstd': 0.0, 'inc': 0}
_METHODS = ('random', *resizing.DRAWN)

# A function of an image, a tenth of the magnitude, and a generator.
Change = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


def _either(size: float, rng: np.random.Generator) -> float:
  """Returns `size` or its negative."""
  return size if rng.random() < 0.5 else -size


def _signed(
  name: str, most: float, image: np.ndarray, x: float, rng: np.random.Generator
) -> np.ndarray:
  return getattr(augment, name)(image, _either(most * x, rng))


def _away_from_1(
  name: str, image: np.ndarray, x: float, rng: np.random.Generator
) -> np.ndarray:
  factor = max(0.1, 1 + _either(0.9 * x, rng))
  return getattr(augment, name)(image, factor)


def _translate_by_chance(
  image: np.ndarray, axis: int, x: float, rng: np.random.Generator
) -> np.ndarray:
  steps = round(_either(100 * x * image.shape[axis] / _SIDE, rng))
  return augment.translate(image, steps, axis)


def _by(name: str, strength: Callable[[float], float]) -> Change:
  return lambda image, x, rng: getattr(augment, name)(image, strength(x))


_FACTORS = ('saturation', 'contrast', 'brightness', 'sharpness')
RAND_AUGMENT: dict[str, Change] = {
  'auto_contrast': lambda image, x, rng: augment.auto_contrast(image),
  'equalize': lambda image, x, rng: augment.equalize(image),
  'invert': lambda image, x, rng: 255 - image,
  'rotate': functools.partial(_signed, 'rotate', 30),
  # This becomes weaker as the magnitude grows, as in the source, and from 20 on
  # changes nothing.
  'posterize': _by('posterize', lambda x: min(8, int(4 * x))),
  # Thresholds there are bytes, so 256 is 0: a magnitude of 10 or 20 inverts the
  # image, and 15 has a threshold of 128 (google-research/big_vision#110).
  'solarize': _by('solarize', lambda x: int(256 * x) % 256),
  **{name: _by(name, lambda x: 0.1 + 1.8 * x) for name in _FACTORS},
  'shear_x': functools.partial(_signed, 'shear_x', 0.3),
  'shear_y': functools.partial(_signed, 'shear_y', 0.3),
  'translate_x': lambda image, x, rng: _translate_by_chance(image, 1, x, rng),
  'translate_y': lambda image, x, rng: _translate_by_chance(image, 0, x, rng),
  'cut_out': lambda image, x, rng: augment.cut_out(
    image, round(40 * x * min(image.shape[:2]) / _SIDE), rng
  ),
  'solarize_add': _by('solarize_add', lambda x: int(110 * x)),
}
_CHANGES = tuple(RAND_AUGMENT.values())

# Changes of shape in timm's list -> the value at magnitude 10: degrees, or
# parts of the image.
_SHAPES = {
  'rotate': 30,
  **{'shear_x': 0.3, 'shear_y': 0.3, 'translate_x': 0.45, 'translate_y': 0.45},
}
# Changes of colours in timm's list, and those that `inc1` replaces so that all
# grow with the magnitude.
_COLOURS: dict[str, Change] = {
  name: change
  for name, change in RAND_AUGMENT.items()
  if name not in (*_SHAPES, 'cut_out')
} | {'solarize': _by('solarize', lambda x: int(256 * x))}
_INCREASING: dict[str, Change] = {
  'posterize': _by('posterize', lambda x: 4 - int(4 * x)),
  'solarize': _by('solarize', lambda x: 256 - int(256 * x)),
} | {name: functools.partial(_away_from_1, name) for name in _FACTORS}
TIMM_RAND_AUGMENT = (*_COLOURS, *_SHAPES)


def _change_shape(
  image: Image.Image, name: str, value: float, method: str
) -> Image.Image:
  kind, resample = Image.Transform.AFFINE, resizing.PILLOW[method]
  fill = _MEAN[len(image.getbands())]
  if name == 'rotate':
    return image.rotate(value, resample, fillcolor=fill)
  # The rows of a matrix that takes (x, y, 1) to its place in the old image.
  matrix = {
    'shear_x': (1, value, 0, 0, 1, 0),
    'shear_y': (1, 0, 0, value, 1, 0),
    'translate_x': (1, 0, value * image.width, 0, 1, 0),
    'translate_y': (1, 0, 0, 0, 1, value * image.height),
  }[name]
  return image.transform(image.size, kind, matrix, resample, fillcolor=fill)


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
    augment.check_channels(image)
    for index in rng.integers(len(_CHANGES), size=self.n):
      image = _CHANGES[index](image, self.m / 10, rng)
    return image


@functools.cache
def _read(config: str) -> dict[str, float]:
  """Reads timm's string, such as `rand-m9-mstd0.5-inc1`."""
  first, *parts = config.split('-')
  values = dict(_PARTS)
  for part in parts:
    found = re.fullmatch(r'([a-z]+)(\d+\.?\d*)', part)
    if not found or found[1] not in _PARTS:
      raise ValueError(f'unknown part {part!r}; choose from {list(_PARTS)}')
    # A whole number, but for the deviation.
    values[found[1]] = type(_PARTS[found[1]])(found[2])
  if first != 'rand' or values['inc'] > 1:
    raise ValueError(f'{config!r} must look like rand-m9-mstd0.5-inc1')
  return values


@dataclasses.dataclass(frozen=True)
class TimmRandAugment:
  """Applies RandAugment as timm does, which DeiT and later recipes use.

  `n` changes are drawn uniformly, with repetition, from the 15 of
  `TIMM_RAND_AUGMENT`, and each is left out with probability 1/2. Otherwise its
  magnitude is normal with mean `m` and deviation `mstd`, cut to 0 to 10, or
  uniform from 0 to `m` if `mstd` is above 100. With `inc1`, all changes but
  those without a strength grow with the magnitude. What a change of shape
  leaves empty gets ImageNet's mean, (124, 116, 104). The source is
  `timm/data/auto_augment.py` of huggingface/pytorch-image-models.

  Differs from timm: `mmax`, `p` and `t` are refused. Like timm's training, but
  unlike its function alone, all changes of shape are bicubic, for which DeiT
  asks; method='random' draws pillow_bilinear or pillow_bicubic for each.

  Attributes:
    config: timm's string. Its parts are m, n, mstd and inc, in any order.
    method: how changes of shape interpolate.
  """

  config: str = 'rand-m9-mstd0.5-inc1'
  method: str = 'pillow_bicubic'

  def __post_init__(self):
    _read(self.config)
    geometry.check_method(self.method, _METHODS)

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    augment.check_channels(image)
    names = TIMM_RAND_AUGMENT
    for index in rng.integers(len(names), size=_read(self.config)['n']):
      if rng.random() < 0.5:
        magnitude = self.draw_magnitude(rng)
        image = self.change(names[index], image, magnitude / 10, rng)
    return image

  def draw_magnitude(self, rng: np.random.Generator) -> float:
    """Returns the magnitude of a change, 0 to 10."""
    values = _read(self.config)
    drawn = rng.normal(values['m'], values['mstd'])
    if values['mstd'] > _UNIFORM:
      drawn = rng.uniform(0, values['m'])
    return min(10, max(0, drawn))

  def change(
    self, name: str, image: np.ndarray, x: float, rng: np.random.Generator
  ) -> np.ndarray:
    """Applies a change of `TIMM_RAND_AUGMENT`.

    Args:
      name: its name.
      image: uint8 [h, w, c], of one channel or three.
      x: a tenth of the magnitude, 0 to 1.
      rng: the generator of a sign, and of the method.

    Returns:
      uint8 [h, w, c].
    """
    if name in _SHAPES:
      value = _either(_SHAPES[name] * x, rng)
      method = resizing.draw_method(self.method, rng)
      return resizing.through_pillow(
        image, lambda made: _change_shape(made, name, value, method)
      )
    increasing = _read(self.config)['inc']
    table = _COLOURS | _INCREASING if increasing else _COLOURS
    return table[name](image, x, rng)


@dataclasses.dataclass(frozen=True)
class ThreeAugment:
  """Makes the image grey, solarises or blurs it, one of these by chance.

  This is the 3-Augment of DeiT III (arXiv:2204.07118; `augment.py` of
  facebookresearch/deit) without its colour jitter, which follows there as
  `colour_jitter(0.3, 0.3, 0.3)`. Values from 128 on are inverted. The blur is
  Pillow's, of a radius from 0.1 to 2 pixels, uniform. An image of one channel
  is grey already, and stays in a third of the cases.
  """

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    augment.check_channels(image)
    kind = rng.integers(3)
    if kind == 0:
      return resizing.through_pillow(
        image, lambda made: made.convert('L').convert(made.mode)
      )
    if kind == 1:
      return augment.solarize(image, 128)
    blur = ImageFilter.GaussianBlur(rng.uniform(0.1, 2))
    return resizing.through_pillow(image, lambda made: made.filter(blur))
