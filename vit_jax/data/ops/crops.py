"""Crops: the part of an image that is kept, and its resize."""

import dataclasses
import math

import numpy as np

from vit_jax.data.ops import geometry, resizing

Box = tuple[int, int, int, int]  # (top, left, height, width), in pixels.


def draw_box(
  shape: tuple[int, int],
  areas: tuple[float, float],
  aspects: tuple[float, float],
  rng: np.random.Generator,
  spare: int = 0,
) -> Box | None:
  """Draws a box at a uniform place, as torchvision and timm do.

  Args:
    shape: (height, width) of the image, in pixels.
    areas: the least and the most area, a part of the image's; uniform.
    aspects: the least and the largest width / height; their logarithm is
      uniform.
    rng: the generator.
    spare: by how many pixels the box is smaller than the image, at least.

  Returns:
    The box, or None if ten of them do not fit.
  """
  rows, columns = shape
  for _ in range(10):
    area = rows * columns * rng.uniform(*areas)
    aspect = math.exp(rng.uniform(*map(math.log, aspects)))
    height, width = (round(math.sqrt(area * a)) for a in (1 / aspect, aspect))
    if 0 < height <= rows - spare and 0 < width <= columns - spare:
      top = int(rng.integers(rows - height + 1))
      return top, int(rng.integers(columns - width + 1)), height, width
  return None


@dataclasses.dataclass(frozen=True)
class Crop(geometry.Sized):
  """Takes a box, which is known before an image is decoded, to `size`."""

  method = 'bilinear'  # Of `Resize`, or 'random'; no argument of most crops.

  def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
    """Returns the box in an image of this size."""
    raise NotImplementedError

  def cut(
    self, image: np.ndarray, box: Box, rng: np.random.Generator
  ) -> np.ndarray:
    """Makes the result from an image and the box there."""
    top, left, height, width = box
    part = image[top : top + height, left : left + width]
    method = resizing.draw_method(self.method, rng)
    return resizing.resize(part, self.size, method=method)

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return self.cut(image, self.box(*image.shape[:2], rng), rng)

  def _room(self, height: int, width: int) -> tuple[int, int]:
    """Returns how many pixels a crop of `size` can move down and right."""
    down, right = height - self.size[0], width - self.size[1]
    if down < 0 or right < 0:
      raise ValueError(
        f'an image of {height}x{width} (height x width) is '
        f'smaller than the crop of {self.size[0]}x{self.size[1]}; resize it'
        ' first, as in resize_small(448)|random_crop(384)'
      )
    return down, right


@dataclasses.dataclass(frozen=True)
class InceptionCrop(Crop):
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
    for low, high, most in (
      ('min_area', 'max_area', 1),
      ('min_aspect', 'max_aspect', math.inf),
    ):
      values = getattr(self, low), getattr(self, high)
      if not 0 < values[0] <= values[1] <= most:
        raise ValueError(
          f'0 < {low} <= {high} <= {most} does not hold for {low}={values[0]},'
          f' {high}={values[1]}'
        )

  def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
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
        return top, left, h, w
    return 0, 0, height, width


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(InceptionCrop):
  """Crops a random area of random aspect (width / height), resizes to `size`.

  The area, a part of the image's, is uniform in its range, and so is the
  logarithm of the aspect in its own. If ten boxes do not fit, the largest box
  in the middle is taken whose aspect is in range. This is torchvision's
  `RandomResizedCrop`, which DeiT (2012.12877) uses through timm, with
  method='pillow_bicubic'. For the methods see `Resize`; 'random' draws
  pillow_bilinear or pillow_bicubic for each image, as timm does.
  """

  _: dataclasses.KW_ONLY
  min_area: float = 0.08
  max_aspect: float = 4 / 3
  method: str = 'pillow_bicubic'

  def __post_init__(self):
    super().__post_init__()
    geometry.check_method(self.method, (*geometry.METHODS, 'random'))

  def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
    areas = self.min_area, self.max_area
    aspects = self.min_aspect, self.max_aspect
    if box := draw_box((height, width), areas, aspects, rng):
      return box
    h = min(height, round(width / self.min_aspect))
    w = min(width, round(height * self.max_aspect))
    return (height - h) // 2, (width - w) // 2, h, w


@dataclasses.dataclass(frozen=True)
class RandomCrop(Crop):
  """Crops `size` at a random place; a smaller image raises ValueError."""

  def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
    down, right = self._room(height, width)
    top, left = int(rng.integers(down + 1)), int(rng.integers(right + 1))
    return top, left, *self.size


@dataclasses.dataclass(frozen=True)
class CentralCrop(Crop):
  """Crops `size` from the middle; a smaller image raises ValueError."""

  def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
    down, right = self._room(height, width)
    return down // 2, right // 2, *self.size


@dataclasses.dataclass(frozen=True)
class SimpleRandomCrop(geometry.Sized):
  """Resizes the shorter side to `size`, pads by 4, crops at a random place.

  DeiT III (arXiv:2204.07118; `augment.py` of facebookresearch/deit) calls it a
  simple random crop. The resize is pillow_bicubic, and the padding mirrors the
  image. The resize draws nothing, so `data.cache` keeps its result if the parts
  are named: `resize_small(method='pillow_bicubic')|pad(4, 'reflect')|
  random_crop`.
  """

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    image = geometry.ResizeSmall(self.size, method='pillow_bicubic')(image, rng)
    return RandomCrop(self.size)(geometry.Pad(4, 'reflect')(image, rng), rng)


@dataclasses.dataclass(frozen=True)
class EvalCrop(geometry.Sized):
  """Resizes the shorter side to `size` / `ratio`, and crops the middle.

  The side is truncated to whole pixels and the resize is pillow_bicubic, as in
  the evaluations of DeiT (`datasets.py` of facebookresearch/deit) and timm. A
  middle between two pixels is rounded as torchvision does, to the even one.
  For a pair, see `ResizeSmall`. For other methods, see `Resize`. With `squash`,
  both sides become `size` / `ratio` and the aspect is not kept, as in timm's
  crop mode of this name.
  """

  size: geometry.Size = dataclasses.field(kw_only=True)
  ratio: float = 0.875
  method: str = 'pillow_bicubic'
  squash: bool = False

  def __post_init__(self):
    super().__post_init__()
    if type(self.ratio) not in (int, float) or not 0 < self.ratio <= 1:
      raise ValueError(f'ratio must lie in (0, 1], got {self.ratio!r}')
    geometry.check_method(self.method)

  @property
  def resize(self) -> geometry.Resize | geometry.ResizeSmall:
    """What is done before the crop."""
    kind = geometry.Resize if self.squash else geometry.ResizeSmall
    sides = tuple(int(n / self.ratio) for n in self.size)
    return kind(sides, method=self.method)

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    image = self.resize(image, rng)
    (height, width), (rows, columns) = image.shape[:2], self.size
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    return image[top : top + rows, left : left + columns]
