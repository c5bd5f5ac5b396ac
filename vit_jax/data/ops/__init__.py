"""What is done to an image: decoding, geometry, and changes of colours.

`parse('inception_crop|flip', image_size=224, channels=3)` returns a function of
an encoded image and a random generator.
"""

from vit_jax.data.ops.decoding import (
  JPEG_DCTS,
  MAX_PIXELS,
  CorruptImageError,
  decode,
)
from vit_jax.data.ops.geometry import (
  METHODS,
  CentralCrop,
  Flip,
  InceptionCrop,
  Op,
  Pad,
  RandomCrop,
  Resize,
  ResizeSmall,
  Shift,
  Trim,
)
from vit_jax.data.ops.preprocess import OPS, Preprocess, parse

__all__ = [
  'JPEG_DCTS',
  'MAX_PIXELS',
  'METHODS',
  'OPS',
  'CentralCrop',
  'CorruptImageError',
  'Flip',
  'InceptionCrop',
  'Op',
  'Pad',
  'Preprocess',
  'RandomCrop',
  'Resize',
  'ResizeSmall',
  'Shift',
  'Trim',
  'decode',
  'parse',
]
