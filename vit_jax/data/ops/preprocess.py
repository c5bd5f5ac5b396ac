"""Strings that name image operations, and the functions that they become.

A preprocessing is a string such as `'inception_crop|flip'` or
`'resize_small(448)|random_crop|flip'`; `parse` turns it into a function. An
operation is a frozen dataclass. Its arguments are an image, uint8 [h, w, c],
and a `np.random.Generator`, the only source of randomness. It returns uint8,
perhaps as a view of its input. Images are normalised on the device, not here.
"""

import ast
import dataclasses
import inspect
import itertools

import numpy as np

from vit_jax.data.ops import augment, decoding, geometry, resizing
from vit_jax.data.ops.decoding import JPEG_DCTS, MAX_PIXELS, CorruptImageError
from vit_jax.data.ops.geometry import Op, Size

OPS: dict[str, type] = {
  'central_crop': geometry.CentralCrop,
  'colour_jitter': augment.ColourJitter,
  'flip': geometry.Flip,
  'inception_crop': geometry.InceptionCrop,
  'pad': geometry.Pad,
  'rand_augment': augment.RandAugment,
  'random_crop': geometry.RandomCrop,
  'random_erasing': augment.RandomErasing,
  'resize': geometry.Resize,
  'resize_small': geometry.ResizeSmall,
  'shift': geometry.Shift,
  'trim': geometry.Trim,
}

# The operations that draw random numbers.
RANDOM = (
  geometry.InceptionCrop,
  geometry.RandomCrop,
  geometry.Flip,
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
    with decoding.room(height * width):
      if (
        ops
        and isinstance(ops[0], geometry.Regional)
        and isinstance(image, bytes)
        # Others may have EXIF data too, but only OpenCV reads it.
        and (not self.upright or decoding.is_jpeg(image))
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
    with decoding.room(height * width):
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
      return decoding.size(image, self.max_pixels)
    return 0, 0

  def _decode(self, image: bytes | np.ndarray, **options) -> np.ndarray:
    return decoding.decode(
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
    op: geometry.Regional,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Applies the first operation; decodes only what it needs."""
    stored_width = width
    if self.upright and decoding.orientation(image) > 4:
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
  preprocess: str, *, image_size: Size, channels: int, **options
) -> Preprocess:
  """Parses a preprocessing such as `'inception_crop(min_area=0.3)|flip'`.

  The operations of `OPS` are separated by `|`, and their arguments are Python
  literals. A size is an integer (a square) or a pair (height, width); its
  default is `image_size`. The empty string only decodes.

  Args:
    preprocess: the string to parse.
    image_size: the size that the result must have, in pixels.
    channels: the number of channels that the result must have.
    **options: how to decode: `upright`, `jpeg_dct`, `max_pixels` and `scaled`
      of `Preprocess`.

  Raises:
    ValueError: an operation is unknown, or does not accept its arguments; the
      message lists the known operations or the accepted arguments.
  """
  size = geometry.pair(image_size)
  parts = preprocess.split('|') if preprocess.strip() else []
  ops = tuple(_parse_op(part.strip(), size) for part in parts)
  return Preprocess(preprocess, size, channels, ops, **options)


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
