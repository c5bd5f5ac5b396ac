"""Decides what is stored of an image: its bytes, a conversion, or nothing.

Bytes stay as they are if TensorFlow, TFDS and this package all decode them to
8-bit RGB: JPEGs and PNGs with 8 bits or fewer. Other images are converted:
those with a lossy format or CMYK to JPEG, the others to PNG. Each image is
decoded once. What cannot be decoded whole is set aside with a reason.
"""

import dataclasses
import io
import math
import os
import zlib
from collections.abc import Iterator

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from vit_jax.data.ops import decoding, resizing

# What the bytes of a file begin with -> its format. Of ISO media files, the
# bytes from the fifth count.
_SIGNATURES = (
  (b'\xff\xd8', 'JPEG'),
  (b'\x89PNG\r\n\x1a\n', 'PNG'),
  (b'GIF8', 'GIF'),
  (b'BM', 'BMP'),
  (b'II*\0', 'TIFF'),
  (b'MM\0*', 'TIFF'),
  (b'\0\0\0\x0cjP  ', 'JPEG 2000'),
  (b'\xff\x4f\xff\x51', 'JPEG 2000'),
  (b'\0\0\0\x0cJXL ', 'JPEG XL'),
  (b'\xff\x0a', 'JPEG XL'),
  (b'8BPS', 'Photoshop'),
  (b'%PDF', 'PDF'),
  (b'\0\0\1\0', 'icon'),
  (b'PK\3\4', 'zip'),
  (b'\x1f\x8b', 'gzip'),
)
_ISO = {
  b'avif': 'AVIF',
  b'avis': 'AVIF',
  b'heic': 'HEIC',
  b'heix': 'HEIC',
  b'mif1': 'HEIC',
}
# Formats that are converted -> whether they are lossy.
_CONVERTED = {
  'GIF': False,
  'BMP': False,
  'TIFF': False,
  'PNM': False,
  'WebP': True,
  'JPEG 2000': True,
  'AVIF': True,
}
_PILLOW = ('GIF', 'BMP', 'TIFF', 'PPM', 'WEBP', 'JPEG2000', 'AVIF')
# Suffix -> the format that it states.
_SUFFIXES = {
  **dict.fromkeys(('.jpg', '.jpeg', '.jpe'), 'JPEG'),
  **dict.fromkeys(('.tif', '.tiff'), 'TIFF'),
  **dict.fromkeys(('.bmp', '.dib'), 'BMP'),
  **dict.fromkeys(('.ppm', '.pgm', '.pbm', '.pnm'), 'PNM'),
  '.png': 'PNG',
  '.gif': 'GIF',
  '.webp': 'WebP',
  '.jp2': 'JPEG 2000',
  '.avif': 'AVIF',
}
# Warnings of the JPEG decoder after which a part of the picture is wrong.
_BROKEN_JPEG = ('premature end', 'bad huffman', 'bad restart')


class SetAsideError(ValueError):
  """An image cannot be stored; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Size:
  """The largest size of stored images; 0 sets no limit.

  Attributes:
    shorter_side: larger images are shrunk to this shorter side, in pixels.
    area: larger images are shrunk to this number of pixels.
    quality: the quality of JPEGs that are written, 1 to 100.
  """

  shorter_side: int = 0
  area: int = 0
  quality: int = 95

  def __post_init__(self):
    if self.shorter_side and self.area:
      raise ValueError(
        f'shorter_side={self.shorter_side} and area={self.area} cannot both be'
        ' set.'
      )
    if min(self.shorter_side, self.area) < 0:
      raise ValueError(
        f'shorter_side={self.shorter_side} and area={self.area} must be'
        ' positive, or 0 for no limit.'
      )
    if not 1 <= self.quality <= 100:
      raise ValueError(f'quality={self.quality} must be 1 to 100.')

  def of(self, height: int, width: int) -> tuple[int, int] | None:
    """Returns the (height, width) to shrink to; None if the image is small."""
    scale = 1.0
    if self.shorter_side:
      scale = self.shorter_side / min(height, width)
    if self.area:
      scale = math.sqrt(self.area / (height * width))
    if scale >= 1:
      return None
    return max(1, round(height * scale)), max(1, round(width * scale))


@dataclasses.dataclass(frozen=True)
class Stored:
  """What is stored of an image.

  Attributes:
    image: the bytes.
    converted: whether they differ from the file's.
    notes: what is unusual about the file, such as 'greyscale'.
  """

  image: bytes
  converted: bool
  notes: tuple[str, ...]


def store(
  image: bytes | np.ndarray,
  name: str,
  size: Size,
  max_pixels: int = decoding.MAX_PIXELS,
) -> Stored:
  """Checks an image, and converts it if necessary.

  Args:
    image: a file's bytes, or uint8 [h, w, c].
    name: the file's name, whose suffix states a format.
    size: the largest size of stored images.
    max_pixels: an image with more pixels is set aside.

  Raises:
    SetAsideError: the image cannot be stored.
  """
  if isinstance(image, np.ndarray):
    pixels, notes = _shrink(image, size)
    return Stored(_png(pixels), True, ('no file', *notes))
  found = identify(image)
  if found not in ('JPEG', 'PNG', *_CONVERTED):
    raise SetAsideError(_unknown(image, found))
  try:
    notes = list(_notes(image, found, name))
    height, width = decoding.header(image, max_pixels)[:2]
  except decoding.CorruptImageError as error:
    raise SetAsideError(str(error)) from error
  colours, convert = _colours(image, found)
  notes += colours
  if found == 'JPEG':
    pixels, more = _decode_jpeg(image)
    notes += more
  else:
    pixels = _decode_other(image, found)
  if pixels.shape[:2] != (height, width):
    raise SetAsideError(
      f'{found} whose header states {height} x {width} pixels, and not the'
      f' {pixels.shape[0]} x {pixels.shape[1]} that it holds'
    )
  if convert or size.of(height, width):
    # The EXIF data is lost.
    turned = _upright(image, found, pixels)
    if turned is not pixels:
      notes.append('turned upright by its EXIF orientation')
    pixels = turned
  pixels, resized = _shrink(pixels, size)
  notes += resized
  if not resized and not convert:
    return Stored(image, False, tuple(notes))
  lossy = found == 'JPEG' or (
    _CONVERTED.get(found) and b'VP8L' not in image[:16]
  )
  try:
    made = _jpeg(pixels, size.quality) if lossy else _png(pixels)
  # The encoders have limits of their own, and errors of several kinds.
  except Exception as error:
    raise SetAsideError(
      f'{found} of {height} x {width} pixels, which cannot be written as'
      f' {"JPEG" if lossy else "PNG"}: {" ".join(str(error).split())}'
    ) from error
  return Stored(made, True, tuple(notes))


def _upright(image: bytes, found: str, pixels: np.ndarray) -> np.ndarray:
  """Returns pixels turned upright; the same array if nothing turns them."""
  if found == 'JPEG':
    turn = decoding.orientation(image)
    return decoding.turn_upright(pixels, turn) if turn > 1 else pixels
  # To look for EXIF data saves decoding most images twice.
  if found in ('PNG', 'WebP') and not (b'eXIf' in image or b'EXIF' in image):
    return pixels
  try:
    turned = decoding.decode(image, 3, upright=True)
  except decoding.CorruptImageError:  # Pillow has read it, which turns nothing.
    return pixels
  return pixels if np.array_equal(turned, pixels) else turned


def identify(data: bytes) -> str:
  """Returns the format that the first bytes state; '' if it is unknown."""
  for start, name in _SIGNATURES:
    if data.startswith(start):
      return name
  if data[:4] == b'RIFF' and data[8:12] == b'WEBP':
    return 'WebP'
  if data[4:8] == b'ftyp':
    return _ISO.get(data[8:12], 'a film, or another ISO media file')
  if data[:1] == b'P' and data[1:2] in b'123456' and data[2:3].isspace():
    return 'PNM'
  head = data[:512].lstrip().lower()
  if head.startswith((b'<!doctype html', b'<html')):
    return 'web page'
  if head.startswith((b'<?xml', b'<svg')):
    return 'SVG or other XML'
  return ''


def _unknown(data: bytes, found: str) -> str:
  if not data:
    return 'empty file'
  if found:
    return f'{found}, which is not read'
  if not data.strip(b'\0'):
    return f'{len(data)} zero bytes'
  return f'no known format: it starts with {data[:8]!r}'


def _notes(data: bytes, found: str, name: str) -> Iterator[str]:
  stated = _SUFFIXES.get(os.path.splitext(name)[1].lower())
  if stated and found and stated != found:
    yield f'{found} with the suffix of {stated}'
  if found == 'JPEG' and decoding.orientation(data) > 1:
    yield 'EXIF orientation'


def _colours(data: bytes, found: str) -> tuple[list[str], bool]:
  """Returns notes about colours and frames, and whether to convert."""
  if found == 'JPEG':
    try:
      colours = simplejpeg.decode_jpeg_header(data, strict=False)[2]
    except (ValueError, KeyError):
      return [], False
    names = {'Gray': 'greyscale', 'CMYK': 'CMYK', 'YCCK': 'CMYK'}
    return [names[colours]] if colours in names else [], colours in (
      'CMYK',
      'YCCK',
    )
  if found == 'PNG':
    depth, kind = data[24:26].ljust(2, b'\0')
    notes = []
    if depth == 16:
      notes.append('16 bits per channel')
    if kind in (0, 4):
      notes.append('greyscale')
    if kind in (4, 6) or b'tRNS' in data[:2048]:
      notes.append('transparent')
    animated = b'acTL' in data[:2048]
    return notes + ['animated'] * animated, depth == 16 or animated
  try:
    with Image.open(io.BytesIO(data), formats=_PILLOW) as image:
      notes = []
      if getattr(image, 'n_frames', 1) > 1:
        notes.append('several pages' if found == 'TIFF' else 'animated')
      if image.mode in ('L', 'LA', '1', 'I;16', 'I;16B', 'I', 'F'):
        notes.append('greyscale')
      if image.mode.startswith(('I', 'F')):
        notes.append('16 or more bits per channel')
      return notes, True
  except Exception:  # Damaged headers may cause any exception.
    return [], True


def _decode_jpeg(data: bytes) -> tuple[np.ndarray, list[str]]:
  """Returns the pixels, uint8 [h, w, 3], and notes."""
  try:
    return simplejpeg.decode_jpeg(data, 'RGB', strict=True), []
  except ValueError as error:
    warning = str(error)
  if any(words in warning.lower() for words in _BROKEN_JPEG):
    raise SetAsideError(f'damaged JPEG: {warning}')
  try:
    return decoding.decode(data, 3, jpeg_dct='accurate'), (
      ['JPEG with surplus bytes'] if 'extraneous' in warning else []
    )
  except decoding.CorruptImageError as error:
    raise SetAsideError(f'JPEG that is not decoded: {warning}') from error


def _decode_other(data: bytes, found: str) -> np.ndarray:
  """Returns the first picture of another format, uint8 [h, w, 3]."""
  first = None
  if found == 'PNG':
    _check_png(data)
  else:
    first = _open(data, found)  # OpenCV takes some truncated files for whole.
  try:
    return decoding.decode(data, 3)
  except decoding.CorruptImageError as error:
    if first is None:
      raise SetAsideError(f'damaged {found}: {error}') from error
    # Older OpenCV wheels know no GIF and no AVIF.
    return np.asarray(first.convert('RGB'))


def _open(data: bytes, found: str) -> Image.Image:
  """Returns the first picture as Pillow reads it, to its end."""
  try:
    image = Image.open(io.BytesIO(data), formats=_PILLOW)
    image.load()
  except Exception as error:  # A damaged file may cause any exception.
    raise SetAsideError(f'damaged {found}: {error}') from error
  if image.mode == 'F':
    raise SetAsideError(f'{found} of floating-point numbers')
  return image


def _check_png(data: bytes) -> None:
  """Checks the checksums of a PNG's chunks; its decoder passes over some."""
  position = 8
  while position < len(data):
    length = int.from_bytes(data[position : position + 4], 'big')
    end = position + 8 + length
    stated = data[end : end + 4]
    actual = zlib.crc32(data[position + 4 : end]).to_bytes(4, 'big')
    if stated != actual:
      raise SetAsideError('damaged PNG: a checksum is wrong')
    if data[position + 4 : position + 8] == b'IEND':
      return
    position = end + 4


def _shrink(pixels: np.ndarray, size: Size) -> tuple[np.ndarray, list[str]]:
  target = size.of(*pixels.shape[:2])
  if target is None:
    return pixels, []
  return resizing.resize(pixels, target, antialias=True), ['resized']


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
  pixels = np.ascontiguousarray(pixels)
  return simplejpeg.encode_jpeg(
    pixels, quality, colorspace='RGB', colorsubsampling='420'
  )


def _png(pixels: np.ndarray) -> bytes:
  if pixels.shape[2] == 3:
    pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
  is_written, content = cv2.imencode('.png', pixels)
  if not is_written:
    raise ValueError('OpenCV writes no PNG of this size')
  return content.tobytes()
