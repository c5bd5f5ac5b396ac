"""Decodes images to uint8 arrays, and detects truncated files."""

import io
import re

import cv2
import numpy as np
import simplejpeg
from PIL import Image

# The data threads and processes already decode in parallel, so OpenCV's own
# threads would only compete for the same cores.
cv2.setNumThreads(0)
# Pillow only reads headers here, and MAX_PIXELS replaces its limit.
Image.MAX_IMAGE_PIXELS = None

# The cosine transforms of the JPEG decoder. `fast` is TensorFlow's default and
# therefore the paper code's; it is one grey level from `accurate` on average.
JPEG_DCTS = ('fast', 'accurate')

_COLOURS = {1: 'GRAY', 3: 'RGB'}
_IMREAD_FLAGS = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}
_JPEG_START = b'\xff\xd8'
# A photograph of 16,384 x 16,384 px; OpenCV's own limit is 2**30.
MAX_PIXELS = 2**28
# Pillow's names of the formats that OpenCV decodes.
_FORMATS = (
  *('AVIF', 'BMP', 'DIB', 'GIF', 'JPEG', 'JPEG2000'),
  *('PPM', 'TIFF', 'WEBP'),
)
_EXIF_START = b'Exif\x00\x00'
_PNG_START = b'\x89PNG\r\n\x1a\n'
_PNG_END = b'IEND\xaeB`\x82'
# FF followed by anything but a stuffed 00, a restart marker, or a fill byte FF.
_JPEG_MARKER = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')


class CorruptImageError(ValueError):
  """The bytes are not a complete image."""


def _jpeg_is_complete(data: bytes) -> bool:
  """Returns whether `data` holds the end marker of its first picture.

  Skips segments by their length, so that a thumbnail in the header or bytes
  after the end do not pass for the picture itself.
  """
  position = len(_JPEG_START)
  while found := _JPEG_MARKER.search(data, position):
    end = found.end()
    if data[end - 1] == 0xD9:
      return True
    position = end + int.from_bytes(data[end : end + 2], 'big')
  return False


def _size(data: bytes) -> tuple[int, int]:
  """Reads (height, width) in pixels from the header of an encoded image.

  Raises:
    CorruptImageError: no known header is found.
  """
  # Data sets may hold millions of small PNGs, so this avoids a library call.
  if data.startswith(_PNG_START):
    width, height = data[16:20], data[20:24]
    return int.from_bytes(height, 'big'), int.from_bytes(width, 'big')
  try:
    if data.startswith(_JPEG_START):
      return simplejpeg.decode_jpeg_header(data, strict=False)[:2]
  except ValueError:  # OpenCV and Pillow know more kinds of JPEG.
    pass
  try:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as header:
      return header.height, header.width
  except Exception as error:  # A damaged header may cause any exception.
    raise _undecodable(data) from error


def _check_pixels(data: bytes, max_pixels: int) -> None:
  height, width = _size(data)
  if height * width > max_pixels:
    raise CorruptImageError(
      f'{height} x {width} pixels (height x width) are more than'
      f' data.max_pixels={max_pixels:,}'
    )


def _undecodable(data: bytes) -> CorruptImageError:
  return CorruptImageError(
    f'cannot decode {len(data)} bytes that start with {data[:8]!r}'
  )


def decode(
  image: bytes | np.ndarray,
  channels: int,
  *,
  upright: bool = False,
  jpeg_dct: str = 'fast',
  max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
  """Decodes an image, or checks an array that is already decoded.

  Args:
    image: an encoded image (JPEG, PNG, ...) or uint8 [h, w, c].
    channels: number of channels to return: 3 for RGB, 1 for grey. Grey becomes
      RGB by repetition, and RGB becomes grey by its luminance. An array may
      have any other number of channels if `channels` is the same number.
    upright: whether to rotate an encoded image by its EXIF orientation. The
      decoder of the released code does not.
    jpeg_dct: one of JPEG_DCTS. Two kinds of JPEG are always decoded accurately:
      those in CMYK, and, if `upright`, those with EXIF data.
    max_pixels: most pixels of an encoded image; a larger one is not decoded.

  Returns:
    uint8 [h, w, channels].

  Raises:
    CorruptImageError: the bytes are not an image, or are a truncated JPEG or
      PNG, or their header states more than `max_pixels` pixels.
    ValueError: an array has another type or rank, or its channels cannot be
      converted.
  """
  if isinstance(image, np.ndarray):
    return _convert_channels(image, channels)
  if channels not in _IMREAD_FLAGS:
    raise ValueError(
      f'cannot decode an image to {channels} channels; choose from '
      f'{sorted(_IMREAD_FLAGS)}'
    )
  # OpenCV may decode a truncated file to a picture that is partly grey.
  if image.startswith(_JPEG_START) and not _jpeg_is_complete(image):
    raise CorruptImageError(f'truncated JPEG of {len(image)} bytes')
  if image.startswith(_PNG_START) and image.rfind(_PNG_END) < 0:
    raise CorruptImageError(f'truncated PNG of {len(image)} bytes')
  _check_pixels(image, max_pixels)
  if (
    image.startswith(_JPEG_START)
    and jpeg_dct == 'fast'
    and not (upright and _EXIF_START in image)
  ):
    try:
      return simplejpeg.decode_jpeg(
        image, _COLOURS[channels], fastdct=True, strict=False
      )
    except ValueError:  # OpenCV knows more kinds of JPEG.
      pass
  flags = _IMREAD_FLAGS[channels]
  if not upright:
    flags |= cv2.IMREAD_IGNORE_ORIENTATION
  try:
    decoded = cv2.imdecode(np.frombuffer(image, np.uint8), flags)
  except cv2.error:  # The image is empty or exceeds OpenCV's own pixel limit.
    decoded = None
  if decoded is None:
    raise _undecodable(image)
  return with_channels(decoded)


def _convert_channels(image: np.ndarray, channels: int) -> np.ndarray:
  if image.dtype != np.uint8 or image.ndim != 3:
    raise ValueError(
      'an image must be encoded bytes or a uint8 array [h, w, c], but got '
      f'{image.dtype} {list(image.shape)}'
    )
  if image.shape[2] == channels:
    return image
  if (image.shape[2], channels) == (1, 3):
    return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
  if (image.shape[2], channels) == (3, 1):
    return with_channels(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))
  raise ValueError(
    f'cannot convert an image of {image.shape[2]} channels to {channels}; '
    'only 1 to 3 and 3 to 1 are supported'
  )


def with_channels(image: np.ndarray) -> np.ndarray:
  """Restores the axis that OpenCV drops from one-channel images."""
  return image[:, :, None] if image.ndim == 2 else image
