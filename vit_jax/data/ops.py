"""Image operations on uint8 arrays, and the strings that name them.

A preprocessing is a string such as `'inception_crop|flip'` or
`'resize_small(448)|random_crop|flip'`; `parse` turns it into a function. An
operation is a frozen dataclass. Its arguments are an image, uint8 [h, w, c],
and a `np.random.Generator`, the only source of randomness. It returns uint8,
perhaps as a view of its input. Images are normalised on the device, not here.
Changes of colours and shapes, such as RandAugment, are in `augment`.
"""

import ast
import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from vit_jax.data import augment, resizing
from vit_jax.data import decode as decode_lib
from vit_jax.data.decode import JPEG_DCTS, MAX_PIXELS, decode, with_channels
from vit_jax.data.decode import CorruptImageError as CorruptImageError

Size = int | tuple[int, int]
Op = Callable[[np.ndarray, np.random.Generator], np.ndarray]

METHODS = ('bilinear', 'area', *resizing.PILLOW)
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


class _Regional:
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
class _Sized(_Regional):
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
    if type(self.n) is not int or self.n < 0:
      raise ValueError(f'n must be a non-negative integer, got {self.n!r}')
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
    if type(self.y) is not int or type(self.x) is not int:
      raise ValueError(
        f'y and x must be whole numbers of pixels, got {self.y!r}, {self.x!r}'
      )
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
    if rng.random() >= 0.5:
      return image
    # NumPy takes ten times as long to copy a mirrored view.
    return with_channels(cv2.flip(image, 1))


OPS: dict[str, type] = {
  'central_crop': CentralCrop,
  'colour_jitter': augment.ColourJitter,
  'flip': Flip,
  'inception_crop': InceptionCrop,
  'pad': Pad,
  'rand_augment': augment.RandAugment,
  'random_crop': RandomCrop,
  'random_erasing': augment.RandomErasing,
  'resize': Resize,
  'resize_small': ResizeSmall,
  'shift': Shift,
  'trim': Trim,
}

# The operations that draw random numbers.
RANDOM = (
  InceptionCrop,
  RandomCrop,
  Flip,
  augment.ColourJitter,
  augment.RandAugment,
  augment.RandomErasing,
)


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
    scaled: whether a JPEG may be decoded to a half, a quarter or an eighth of
      its size if the first operation shrinks it at least as much.
  """

  text: str
  image_size: tuple[int, int]
  channels: int
  ops: tuple[Op, ...]
  upright: bool = False
  jpeg_dct: str = 'fast'
  max_pixels: int = MAX_PIXELS
  scaled: bool = False

  def __post_init__(self):
    if self.jpeg_dct not in JPEG_DCTS:
      raise ValueError(
        f'jpeg_dct={self.jpeg_dct!r} is unknown; choose from {list(JPEG_DCTS)}'
      )

  def __call__(
    self,
    image: bytes | np.ndarray,
    rng: np.random.Generator,
    made: int = 0,
  ) -> np.ndarray:
    """Returns uint8 [image_size[0], image_size[1], channels].

    Args:
      image: an encoded image or uint8 [h, w, c].
      rng: the generator of the random operations.
      made: number of first operations that made `image`, and are left out.

    Raises:
      CorruptImageError: the bytes cannot be decoded.
      ValueError: the result does not have `image_size`.
    """
    ops = self.ops[made:]
    height, width = self._size(image)
    with decode_lib.room(height * width):
      if (
        ops
        and isinstance(ops[0], _Regional)
        and isinstance(image, bytes)
        # Others may have EXIF data too, but only OpenCV reads it.
        and (not self.upright or decode_lib.is_jpeg(image))
      ):
        image = self._make_region(image, height, width, ops[0], rng)
        ops = ops[1:]
      else:
        image = self._decode(image, width=width)
      for op in ops:
        image = op(image, rng)
    if image.shape[:2] != self.image_size:
      raise ValueError(
        f'{self.text!r} gave an image of {image.shape[0]}x{image.shape[1]} '
        f'(height x width), but {self.image_size[0]}x{self.image_size[1]} is '
        'expected; end the preprocessing with resize or a crop'
      )
    return image

  def without_chance(self, image: bytes | np.ndarray) -> tuple[np.ndarray, int]:
    """Decodes an image and applies first operations that draw nothing.

    Returns:
      uint8 [h, w, channels], the smallest of what these operations make; and
      the number of operations that made it.

    Raises:
      CorruptImageError: the bytes cannot be decoded.
    """
    fixed = itertools.takewhile(lambda op: not isinstance(op, RANDOM), self.ops)
    height, width = self._size(image)
    with decode_lib.room(height * width):
      image = smallest = self._decode(image, width=width)
      made = 0
      for number, op in enumerate(fixed, start=1):
        image = op(image, None)
        if image.size <= smallest.size:
          smallest, made = image, number
    return smallest, made

  def _size(self, image: bytes | np.ndarray) -> tuple[int, int]:
    """Returns (height, width) of an encoded image; zeros if it is decoded."""
    if isinstance(image, bytes):
      return decode_lib.size(image, self.max_pixels)
    return 0, 0

  def _decode(self, image: bytes | np.ndarray, **options) -> np.ndarray:
    return decode(
      image,
      self.channels,
      upright=self.upright,
      jpeg_dct=self.jpeg_dct,
      max_pixels=self.max_pixels,
      **options,
    )

  def _make_region(
    self,
    image: bytes,
    height: int,
    width: int,
    op: _Regional,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Applies the first operation; decodes only what it needs."""
    stored_width = width
    if self.upright and decode_lib.orientation(image) > 4:
      height, width = width, height
    before = rng.bit_generator.state
    region = op.region(height, width, rng)
    shrink = op.shrink(region) if self.scaled else 1
    try:
      decoded = self._decode(
        image,
        rows=region.top + region.height,
        shrink=shrink,
        width=stored_width,
      )
    except CorruptImageError:
      # Another image takes the generator over, as if nothing had been drawn.
      rng.bit_generator.state = before
      raise
    if decoded.shape[1] < width:
      return resizing.resize_part(
        decoded, [n / shrink for n in region[:4]], region.size
      )
    return op.make(decoded, region)


def parse(
  preprocess: str,
  *,
  image_size: Size,
  channels: int,
  upright: bool = False,
  jpeg_dct: str = 'fast',
  max_pixels: int = MAX_PIXELS,
  scaled: bool = False,
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
    scaled: whether JPEGs may be decoded smaller, see `Preprocess`.

  Raises:
    ValueError: an operation is unknown, or does not accept its arguments; the
      message lists the known operations or the accepted arguments.
  """
  size = _pair(image_size)
  parts = preprocess.split('|') if preprocess.strip() else []
  ops = tuple(_parse_op(part.strip(), size) for part in parts)
  return Preprocess(
    preprocess, size, channels, ops, upright, jpeg_dct, max_pixels, scaled
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
