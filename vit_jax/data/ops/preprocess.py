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
from collections.abc import Callable

import numpy as np

from vit_jax.data.ops import augment, crops, decoding, geometry, policies
from vit_jax.data.ops.decoding import MAX_PIXELS, CorruptImageError

Op = Callable[[np.ndarray, np.random.Generator], np.ndarray]

OPS: dict[str, type] = {
  'central_crop': crops.CentralCrop,
  'colour_jitter': augment.ColourJitter,
  'eval_crop': crops.EvalCrop,
  'flip': geometry.Flip,
  'inception_crop': crops.InceptionCrop,
  'pad': geometry.Pad,
  'rand_augment': policies.RandAugment,
  'random_crop': crops.RandomCrop,
  'random_erasing': augment.RandomErasing,
  'random_resized_crop': crops.RandomResizedCrop,
  'resize': geometry.Resize,
  'resize_small': geometry.ResizeSmall,
  'shift': geometry.Shift,
  'simple_random_crop': crops.SimpleRandomCrop,
  'three_augment': policies.ThreeAugment,
  'timm_rand_augment': policies.TimmRandAugment,
  'trim': geometry.Trim,
}

# The operations that draw random numbers. One that is missing here gets no
# generator where `data.cache` keeps what comes before the first of them.
RANDOM = (
  *(crops.InceptionCrop, crops.RandomCrop, crops.RandomResizedCrop),
  *(crops.SimpleRandomCrop, geometry.Flip),
  *(augment.ColourJitter, augment.RandomErasing),
  *(policies.RandAugment, policies.ThreeAugment, policies.TimmRandAugment),
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
    jpeg_dct: how JPEGs are decoded, 'fast' or 'accurate'.
    max_pixels: most pixels that an encoded image may have.
  """

  text: str
  image_size: tuple[int, int]
  channels: int
  ops: tuple[Op, ...]
  upright: bool = False
  jpeg_dct: str = 'fast'
  max_pixels: int = MAX_PIXELS

  def __call__(
    self,
    image: bytes | np.ndarray,
    rng: np.random.Generator,
    done: int = 0,
  ) -> np.ndarray:
    """Returns uint8 [image_size[0], image_size[1], channels].

    Args:
      image: an encoded image or uint8 [h, w, c].
      rng: the generator of the random operations.
      done: number of first operations that made `image`, and are left out.

    Raises:
      CorruptImageError: the bytes cannot be decoded.
      ValueError: the result does not have `image_size`.
    """
    ops = self.ops[done:]
    known = decoding.header(image, self.max_pixels)
    # The stored rows of a JPEG that is not turned are those of the result.
    cut = ops and isinstance(ops[0], crops.Crop) and known.format == 'JPEG'
    with decoding.TURNS:
      if cut and not (self.upright and decoding.orientation(image) > 1):
        image, ops = self._crop(image, known, ops[0], rng), ops[1:]
      else:
        image = self._decode(image, known=known)
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
    known = decoding.header(image, self.max_pixels)
    with decoding.TURNS:
      image = smallest = self._decode(image, known=known)
      done = 0
      for number, op in enumerate(fixed, start=1):
        image = op(image, None)
        if image.size <= smallest.size:
          smallest, done = image, number
    return smallest, done

  def _decode(self, image: bytes | np.ndarray, **options) -> np.ndarray:
    defaults = {'upright': self.upright, 'jpeg_dct': self.jpeg_dct}
    return decoding.decode(image, self.channels, **(defaults | options))

  def _crop(
    self,
    image: bytes,
    known: decoding.Header,
    op: crops.Crop,
    rng: np.random.Generator,
  ) -> np.ndarray:
    """Decodes a JPEG down to the end of a crop, a tenth faster than whole."""
    before = rng.bit_generator.state
    box = op.box(known.height, known.width, rng)
    rows = box[0] + box[2]
    try:
      decoded = self._decode(image, upright=False, known=known, rows=rows)
    except CorruptImageError:
      # Another image takes the generator over, as if nothing had been drawn.
      rng.bit_generator.state = before
      raise
    return op.cut(decoded, box, rng)


def parse(
  preprocess: str,
  *,
  image_size: int | tuple[int, int],
  channels: int,
  **options,
) -> Preprocess:
  """Parses a preprocessing such as `'inception_crop(min_area=0.3)|flip'`.

  The operations of `OPS` are separated by `|`, and their arguments are Python
  literals. A size is an integer (a square) or a pair (height, width); its
  default is `image_size`. The empty string only decodes.

  Args:
    preprocess: the string to parse.
    image_size: the size that the result must have, in pixels.
    channels: the number of channels that the result must have.
    **options: how to decode: `upright`, `jpeg_dct` and `max_pixels` of
      `Preprocess`.

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
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = call.func.id
  except (SyntaxError, AttributeError):
    raise ValueError(
      f'cannot read {text!r} in a preprocessing; operations look like flip or '
      'resize_small(448) and are separated by |'
    ) from None
  if name not in OPS:
    raise ValueError(f'unknown operation {name!r}; choose from {sorted(OPS)}')
  signature = inspect.signature(OPS[name])
  try:
    args = [_literal(arg) for arg in call.args]
    named = {word.arg: _literal(word.value) for word in call.keywords}
    given = signature.bind_partial(*args, **named).arguments
    if 'size' in signature.parameters and 'size' not in given:
      named['size'] = image_size
    return OPS[name](*args, **named)
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
