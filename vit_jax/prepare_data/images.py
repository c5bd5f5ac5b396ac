"""Decides what is stored of an image: its bytes, a conversion, or nothing.

Bytes stay as they are if TensorFlow, TFDS and this package all decode them to
8-bit RGB: JPEGs and PNGs with 8 bits or fewer. Other images are converted:
those with a lossy format or CMYK to JPEG, the others to PNG. Each image is
decoded once. What cannot be decoded whole is set aside with a reason.
"""

import contextlib
import dataclasses
import io
import math
import os
import zlib

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from vit_jax.data.ops import decoding, resizing
from vit_jax.data.ops.decoding import CorruptImageError

# Formats that are converted, and those of them that are lossy.
_LOSSY = ('WEBP', 'JPEG2000', 'AVIF')
_CONVERTED = ('GIF', 'BMP', 'TIFF', 'PPM', *_LOSSY)
# Warnings of the JPEG decoder after which a part of the picture is wrong.
_BROKEN_JPEG = ('premature end', 'bad huffman', 'bad restart')


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

  def of(self, height: int, width: int) -> tuple[int, int] | None:
    """Returns the (height, width) to shrink to; None if the image is small."""
    scale = self.shorter_side / min(height, width) or 1.0
    if self.area:
      scale = math.sqrt(self.area / (height * width))
    if scale >= 1:
      return None
    return max(1, round(height * scale)), max(1, round(width * scale))


def store(
  image: bytes | np.ndarray,
  name: str,
  size: Size,
  max_pixels: int = decoding.MAX_PIXELS,
) -> tuple[bytes, list[str]]:
  """Checks an image, and converts it if necessary.

  Args:
    image: a file's bytes, or uint8 [h, w, c].
    name: the file's name, whose suffix states a format.
    size: the largest size of stored images.
    max_pixels: an image with more pixels is set aside.

  Returns:
    The bytes to store, the same object if they stay as they are; and what is
    unusual about the file, such as 'animated'.

  Raises:
    CorruptImageError: the image cannot be stored; the message is the reason.
  """
  found, pixels, notes, why = 'array', image, [], 'array'
  if isinstance(image, bytes):
    found, pixels, notes, why = _read(image, name, max_pixels)
  small = size.of(*pixels.shape[:2])
  if not (small or why):
    return image, notes
  notes += [f'converted: {why}'] * bool(why)
  if found != 'array':
    # The EXIF data is lost.
    turned = _upright(image, found, pixels)
    if turned is not pixels:
      notes.append('turned upright by its EXIF orientation')
    pixels = turned
  if small:
    small = size.of(*pixels.shape[:2])
    pixels = resizing.resize(pixels, small, antialias=True)
  lossy = found == 'JPEG' or (found in _LOSSY and b'VP8L' not in image[:16])
  try:
    if lossy:
      pixels = np.ascontiguousarray(pixels)
      made = simplejpeg.encode_jpeg(pixels, size.quality, 'RGB', '420')
    else:
      bgr = np.ascontiguousarray(pixels[..., ::-1])
      made = cv2.imencode('.png', bgr)[1].tobytes()
  # The encoders have limits of their own, and errors of several kinds.
  except Exception as error:
    height, width = pixels.shape[:2]
    raise CorruptImageError(
      f'{found} of {height} x {width} pixels, which cannot be written as'
      f' {"JPEG" if lossy else "PNG"}: {" ".join(str(error).split())}'
    ) from error
  return made, notes


def _read(
  image: bytes, name: str, max_pixels: int
) -> tuple[str, np.ndarray, list[str], str]:
  """Decodes a file.

  Returns:
    Pillow's name of the format; the pixels, uint8 [h, w, 3]; notes; and why
    readers need a conversion, '' if they do not.

  Raises:
    CorruptImageError: its header is unknown or damaged, or states too many
      pixels; or it cannot be decoded whole.
  """
  header, notes = decoding.header(image, max_pixels), []
  found, stated = header.format, header[:2]
  if found not in ('JPEG', 'PNG', *_CONVERTED):
    raise CorruptImageError(f'{found} is no format that is converted')
  suffix = os.path.splitext(name)[1].lower()
  named = Image.registered_extensions().get(suffix, found)
  if named != found:
    notes.append(f'{found} with the suffix of {named}')
  if found == 'JPEG':
    if decoding.orientation(image) > 1:
      notes.append('EXIF orientation')
    pixels, why = _read_jpeg(image)
  elif found == 'PNG':
    pixels, why = _read_png(image)
  else:
    pixels, why = _read_other(image, found)
  if pixels.shape[:2] != stated:
    raise CorruptImageError(
      f'{found} whose header states {stated[0]} x {stated[1]} pixels, and not'
      f' the {pixels.shape[0]} x {pixels.shape[1]} that it holds'
    )
  return found, pixels, notes, why


def _read_jpeg(data: bytes) -> tuple[np.ndarray, str]:
  try:
    colours = simplejpeg.decode_jpeg_header(data, strict=False)[2]
  except (ValueError, KeyError):
    colours = ''
  why = 'CMYK' if colours in ('CMYK', 'YCCK') else ''
  try:
    return simplejpeg.decode_jpeg(data, 'RGB', strict=True), why
  except ValueError as error:
    warning = str(error)
  if any(words in warning.lower() for words in _BROKEN_JPEG):
    raise CorruptImageError(f'damaged JPEG: {warning}')
  return decoding.decode(data, 3, jpeg_dct='accurate'), why


def _read_png(data: bytes) -> tuple[np.ndarray, str]:
  # Decoders pass over some wrong checksums, and Pillow refuses large texts.
  position, chunk = 8, b''
  while position < len(data) and chunk != b'IEND':
    end = position + 8 + int.from_bytes(data[position : position + 4], 'big')
    chunk = data[position + 4 : position + 8]
    checksum = zlib.crc32(data[position + 4 : end]).to_bytes(4, 'big')
    if data[end : end + 4] != checksum:
      raise CorruptImageError('damaged PNG: a checksum is wrong')
    position = end + 4
  animated = b'acTL' in data[:2048]
  why = 'animated PNG' if animated else '16 bits' if data[24] == 16 else ''
  return decoding.decode(data, 3), why


def _read_other(data: bytes, found: str) -> tuple[np.ndarray, str]:
  """Decodes the first picture of a file, and looks for others."""
  try:
    image = Image.open(io.BytesIO(data), formats=_CONVERTED)
    image.load()  # OpenCV takes some truncated files for whole.
  except Exception as error:  # A damaged file may cause any exception.
    raise CorruptImageError(f'damaged {found}: {error}') from error
  if image.mode == 'F':
    raise CorruptImageError(f'{found} of floating-point numbers')
  why = found
  with contextlib.suppress(Exception):  # The frames behind may be damaged.
    if getattr(image, 'n_frames', 1) > 1:
      why += ' with several pictures'
  try:
    return decoding.decode(data, 3), why
  except CorruptImageError:
    # Older OpenCV wheels know no GIF and no AVIF.
    return np.asarray(image.convert('RGB')), why


def _upright(image: bytes, found: str, pixels: np.ndarray) -> np.ndarray:
  """Returns pixels turned upright; the same array if nothing turns them."""
  if found == 'JPEG':
    turn = decoding.orientation(image)
    return decoding.turn_upright(pixels, turn) if turn > 1 else pixels
  # To look for EXIF data saves decoding most images twice.
  if found in ('PNG', 'WEBP') and not (b'eXIf' in image or b'EXIF' in image):
    return pixels
  try:
    turned = decoding.decode(image, 3, upright=True)
  except CorruptImageError:  # Pillow has read it, which turns nothing.
    return pixels
  return pixels if np.array_equal(turned, pixels) else turned
