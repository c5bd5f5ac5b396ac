"""Image operations on uint8 arrays, and the strings that name them.

A preprocessing is a string such as `'inception_crop|flip'` or
`'resize_small(448)|random_crop|flip'`; `parse` turns it into a function. An
operation is a frozen dataclass. Its arguments are an image, uint8 [h, w, c],
and a `np.random.Generator`, the only source of randomness. It returns uint8,
perhaps as a view of its input. Images are normalised on the device, not here.
"""

import ast
import dataclasses
import inspect
import math
from collections.abc import Callable

import cv2
import numpy as np

from vit_jax.data.decode import JPEG_DCTS, MAX_PIXELS, decode, with_channels
from vit_jax.data.decode import CorruptImageError as CorruptImageError

Size = int | tuple[int, int]
Op = Callable[[np.ndarray, np.random.Generator], np.ndarray]

METHODS = ('bilinear', 'area')
PAD_MODES = {'zeros': cv2.BORDER_CONSTANT, 'reflect': cv2.BORDER_REFLECT_101}


def _pair(size: Size) -> tuple[int, int]:
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


def _resize(
  image: np.ndarray,
  size: tuple[int, int],
  antialias: bool = False,
  method: str = 'bilinear',
) -> np.ndarray:
  """Resizes to (height, width); see `Resize`.

  Unlike the released code, this rounds to uint8, so that images take a quarter
  of the memory on their way to the device.
  """
  if image.shape[:2] == size:
    return image
  if method == 'area':
    return _resize_area(image, size)
  shrinks = image.shape[0] >= size[0] and image.shape[1] >= size[1]
  method = cv2.INTER_AREA if antialias and shrinks else cv2.INTER_LINEAR
  return with_channels(cv2.resize(image, size[::-1], interpolation=method))


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


def _crop_room(image: np.ndarray, size: tuple[int, int]) -> tuple[int, int]:
  """Returns how many pixels a crop of `size` can move down and right."""
  down, right = image.shape[0] - size[0], image.shape[1] - size[1]
  if down < 0 or right < 0:
    raise ValueError(
      f'an image of {image.shape[0]}x{image.shape[1]} (height x width) is '
      f'smaller than the crop of {size[0]}x{size[1]}; resize it first, as in '
      'resize_small(448)|random_crop(384)'
    )
  return down, right


@dataclasses.dataclass(frozen=True)
class _Sized:
  """An operation whose result has `size`, stored as (height, width)."""

  size: Size

  def __post_init__(self):
    object.__setattr__(self, 'size', _pair(self.size))


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
    if self.antialias and self.method == 'area':
      raise ValueError(
        "method='area' already averages; remove antialias or choose 'bilinear'"
      )

  def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return _resize(image, size, self.antialias, self.method)


@dataclasses.dataclass(frozen=True)
class Resize(_Resized):
  """Resizes to `size` without keeping the aspect.

  Both methods treat pixels as squares, and the borders of the old and the new
  image coincide:

    bilinear  interpolates between the two nearest centres along each axis,
      without antialiasing, and rounds. `tf.image.resize` in the released code
      does not round, and big_vision's `resize` truncates.
    area  takes the mean of the pixels that a new one covers, and truncates, as
      big_vision's `resize_small` does. A whole multiple of the size repeats
      pixels.

  With `antialias`, bilinear shrinks by the rounded mean of the covered pixels.
  No original implementation does that.
  """

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return self._resize(image, self.size)


@dataclasses.dataclass(frozen=True)
class ResizeSmall(_Resized):
  """Resizes the shorter side to `size` and keeps the aspect, up to rounding.

  For the methods see `Resize`; big_vision uses method='area'. For a pair, the
  larger side counts, so that a crop of that pair always fits.
  """

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    height, width = image.shape[:2]
    scale = max(self.size) / min(height, width)
    size = math.floor(height * scale + 0.5), math.floor(width * scale + 0.5)
    return self._resize(image, size)


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
    if not 0 < self.min_area <= self.max_area <= 1:
      raise ValueError(
        '0 < min_area <= max_area <= 1 does not hold for '
        f'min_area={self.min_area}, max_area={self.max_area}'
      )
    if not 0 < self.min_aspect <= self.max_aspect:
      raise ValueError(
        '0 < min_aspect <= max_aspect does not hold for '
        f'min_aspect={self.min_aspect}, max_aspect={self.max_aspect}'
      )

  def box(
    self, height: int, width: int, rng: np.random.Generator
  ) -> tuple[int, int, int, int]:
    """Draws (top, left, height, width) of a crop, in pixels."""
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

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    top, left, h, w = self.box(image.shape[0], image.shape[1], rng)
    return _resize(image[top : top + h, left : left + w], self.size)


@dataclasses.dataclass(frozen=True)
class RandomCrop(_Sized):
  """Crops `size` at a random place; a smaller image raises ValueError."""

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    down, right = _crop_room(image, self.size)
    top, left = int(rng.integers(down + 1)), int(rng.integers(right + 1))
    return image[top : top + self.size[0], left : left + self.size[1]]


@dataclasses.dataclass(frozen=True)
class CentralCrop(_Sized):
  """Crops `size` from the middle; a smaller image raises ValueError."""

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    down, right = _crop_room(image, self.size)
    top, left = down // 2, right // 2
    return image[top : top + self.size[0], left : left + self.size[1]]


@dataclasses.dataclass(frozen=True)
class Pad:
  """Adds `n` pixels on each side: zeros, or the image mirrored (`reflect`)."""

  n: int
  mode: str = 'zeros'

  def __post_init__(self):
    if type(self.n) is not int or self.n < 0:
      raise ValueError(f'n must be a non-negative integer, got {self.n!r}')
    if self.mode not in PAD_MODES:
      raise ValueError(
        f'unknown mode {self.mode!r}; choose from {sorted(PAD_MODES)}'
      )

  def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    sides = [self.n] * 4
    return with_channels(
      cv2.copyMakeBorder(image, *sides, PAD_MODES[self.mode])
    )


@dataclasses.dataclass(frozen=True)
class Trim:
  """Removes `n` pixels from each side, such as the red frame of ObjectNet."""

  n: int

  def __post_init__(self):
    if type(self.n) is not int or self.n < 0:
      raise ValueError(f'n must be a non-negative integer, got {self.n!r}')

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
    return image[:, ::-1] if rng.random() < 0.5 else image


OPS: dict[str, type] = {
  'central_crop': CentralCrop,
  'flip': Flip,
  'inception_crop': InceptionCrop,
  'pad': Pad,
  'random_crop': RandomCrop,
  'resize': Resize,
  'resize_small': ResizeSmall,
  'trim': Trim,
}


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """Decodes an image and applies operations; made by `parse`, picklable.

  Attributes:
    text: the string that was parsed.
    image_size: (height, width) of the result, in pixels.
    channels: number of channels of the result.
    ops: the operations, in order.
    upright: whether to rotate images by their EXIF orientation.
    jpeg_dct: how JPEGs are decoded, one of `decode.JPEG_DCTS`.
    max_pixels: most pixels that an encoded image may have.
  """

  text: str
  image_size: tuple[int, int]
  channels: int
  ops: tuple[Op, ...]
  upright: bool = False
  jpeg_dct: str = 'fast'
  max_pixels: int = MAX_PIXELS

  def __post_init__(self):
    if self.jpeg_dct not in JPEG_DCTS:
      raise ValueError(
        f'jpeg_dct={self.jpeg_dct!r} is unknown; choose from {list(JPEG_DCTS)}'
      )

  def __call__(
    self, image: bytes | np.ndarray, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns uint8 [image_size[0], image_size[1], channels].

    Args:
      image: an encoded image or uint8 [h, w, c].
      rng: the generator of the random operations.

    Raises:
      CorruptImageError: the bytes cannot be decoded.
      ValueError: the result does not have `image_size`.
    """
    image = decode(
      image,
      self.channels,
      upright=self.upright,
      jpeg_dct=self.jpeg_dct,
      max_pixels=self.max_pixels,
    )
    for op in self.ops:
      image = op(image, rng)
    if image.shape[:2] != self.image_size:
      raise ValueError(
        f'{self.text!r} gave an image of {image.shape[0]}x{image.shape[1]} '
        f'(height x width), but {self.image_size[0]}x{self.image_size[1]} is '
        'expected; end the preprocessing with resize or a crop'
      )
    return image


def parse(
  preprocess: str,
  *,
  image_size: Size,
  channels: int,
  upright: bool = False,
  jpeg_dct: str = 'fast',
  max_pixels: int = MAX_PIXELS,
) -> Preprocess:
  """Parses a preprocessing such as `'inception_crop(min_area=0.3)|flip'`.

  The operations of `OPS` are separated by `|`, and their arguments are Python
  literals. A size is an integer (a square) or a pair (height, width); its
  default is `image_size`. The empty string only decodes.

  Args:
    preprocess: the string to parse.
    image_size: the size that the result must have, in pixels.
    channels: the number of channels that the result must have.
    upright: whether to rotate images by their EXIF orientation.
    jpeg_dct: how JPEGs are decoded, one of `decode.JPEG_DCTS`.
    max_pixels: most pixels that an encoded image may have.

  Raises:
    ValueError: an operation is unknown, or does not accept its arguments; the
      message lists the known operations or the accepted arguments.
  """
  size = _pair(image_size)
  parts = preprocess.split('|') if preprocess.strip() else []
  ops = tuple(_parse_op(part.strip(), size) for part in parts)
  return Preprocess(
    preprocess, size, channels, ops, upright, jpeg_dct, max_pixels
  )


def _parse_op(text: str, image_size: tuple[int, int]) -> Op:
  try:
    node = ast.parse(text, mode='eval').body
  except SyntaxError:
    node = None
  call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
  if not isinstance(call.func, ast.Name):
    raise ValueError(
      f'cannot read {text!r} in a preprocessing; operations look like flip or '
      'resize_small(448) and are separated by |'
    )
  name = call.func.id
  if name not in OPS:
    raise ValueError(f'unknown operation {name!r}; choose from {sorted(OPS)}')
  signature = inspect.signature(OPS[name])
  try:
    bound = signature.bind_partial(
      *(_literal(arg) for arg in call.args),
      **{word.arg: _literal(word.value) for word in call.keywords},
    )
    if 'size' in signature.parameters:
      bound.arguments.setdefault('size', image_size)
    signature.bind(**bound.arguments)
    return OPS[name](**bound.arguments)
  except (TypeError, ValueError) as error:
    accepted = signature.replace(return_annotation=signature.empty)
    raise ValueError(
      f'bad arguments in {text!r}: {error}; accepted: {name}{accepted}'
    ) from error


def _literal(node: ast.expr):
  try:
    return ast.literal_eval(node)
  except ValueError:
    raise ValueError(f'{ast.unparse(node)} is not a Python literal') from None
