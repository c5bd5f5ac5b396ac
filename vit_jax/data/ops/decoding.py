"""Decodes images to uint8 arrays, and detects truncated files."""

import io
import re
import threading
from typing import NamedTuple

import cv2
import joblib
import numpy as np
import simplejpeg
from PIL import ExifTags, Image

# 134 megapixels, which is more than most cameras have; OpenCV's own limit is
# 2**30. A file of 34 bytes may state them all.
MAX_PIXELS = 2**27

_COLOURS = {1: 'GRAY', 3: 'RGB'}
_IMREAD_FLAGS = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}
_JPEG_START, _JPEG_END = b'\xff\xd8', b'\xff\xd9'
_PNG_START, _PNG_END = b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'
_EXIF_START = b'Exif\x00\x00'
# Markers of a JPEG's header: the start of a scan, and the frames. Three numbers
# among these mean something else. The first two frames store a picture row by
# row, the others in several passes or in rare ways.
_SCAN = 0xDA
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1)
# FF followed by anything but a stuffed 00, a marker without a length (TEM or a
# restart), or a fill byte FF.
_MARKER = re.compile(rb'\xff[^\x00\x01\xd0-\xd7\xff]')
# Progressive JPEGs have ten scans, few have thirty. Each costs a pass through
# the whole picture, even if it takes ten bytes of the file.
_MOST_SCANS = 100
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # Tags of a TIFF.
# What the JPEG decoder warns of if it meets the end before the last row: in the
# middle of the data, or where a restart marker should be.
_ENDS_EARLY = ('premature end', 'found marker 0xd9')
# All that it may warn of besides. After any other message, it has left rows as
# they were in memory.
_TOLERABLE = (
  *('corrupt jpeg data', 'inconsistent progression', 'invalid sos parameters'),
  *('unknown adobe color', 'unknown jfif'),
)
# Many threads may wait for reads. If more of them decoded than there are cores,
# that would be no faster, and only take memory. A worker process has fewer.
TURNS = threading.Semaphore(joblib.cpu_count())


class CorruptImageError(ValueError):
  """The bytes are not a complete image."""


def own_process() -> None:
  """Sets up a process whose main work is to decode images.

  It is no part of the import, which must not change another program.
  """
  # Threads and processes decode in parallel, so OpenCV's own would only compete
  # for the same cores.
  cv2.setNumThreads(0)
  # MAX_PIXELS, or what the caller gives in its place, replaces Pillow's limit.
  Image.MAX_IMAGE_PIXELS = None


class Header(NamedTuple):
  """What the header of an encoded image says.

  Attributes:
    height, width: of the stored picture, in pixels; not turned by its EXIF
      orientation.
    frame, scan: where these begin in a JPEG; 0 if they are not found.
    format: `JPEG`, `PNG` or Pillow's name of another one.
  """

  height: int
  width: int
  frame: int = 0
  scan: int = 0
  format: str = ''


def is_jpeg(data: bytes) -> bool:
  """Returns whether the bytes begin like a JPEG."""
  return data.startswith(_JPEG_START)


def header(data: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> Header:
  """Reads the header of an encoded image; zeros for one that is decoded.

  Raises:
    CorruptImageError: a JPEG or PNG is truncated, no known header is found, it
      states more than `max_pixels` pixels, or a JPEG has too many scans.
  """
  found, tile = Header(0, 0), (0, 0)
  if isinstance(data, np.ndarray):
    return found
  # OpenCV may decode a truncated file to a picture that is partly grey.
  if is_jpeg(data):
    found = _jpeg_header(data)
    # A thumbnail, which has an end of its own, lies before the scan.
    if data.rfind(_JPEG_END, found.scan) < 0:
      raise _truncated('JPEG', data)
  elif data.startswith(_PNG_START):
    # Data sets may hold millions of small PNGs, so no library is called.
    size = _integer(data[20:24]), _integer(data[16:20])
    found = Header(*size, format='PNG')
    if data.rfind(_PNG_END) < 0:
      raise _truncated('PNG', data)
  if not found.height * found.width:
    try:
      with Image.open(io.BytesIO(data)) as image:
        kind = found.format or image.format
        found = found._replace(
          height=image.height, width=image.width, format=kind
        )
        tags = getattr(image, 'tag_v2', {})
        tile = tags.get(_TILE_LENGTH, 0), tags.get(_TILE_WIDTH, 0)
    except Image.DecompressionBombError as error:  # See `own_process`.
      raise CorruptImageError(str(error)) from error
    except Exception as error:  # A damaged header may cause any exception.
      raise _undecodable(data) from error
  # A tile is decoded whole, whatever the image has.
  for (height, width), of in ((found[:2], ''), (tile, ' of a tile')):
    if height * width > max_pixels:
      raise CorruptImageError(
        f'{height} x {width} pixels (height x width){of} are more than'
        f' max_pixels={max_pixels:,}'
      )
  if is_jpeg(data) and not _is_one_scan(data, found):
    _check_scans(data, found.scan or len(_JPEG_START))
  return found


def _jpeg_header(data: bytes) -> Header:
  frame = height = width = 0
  position = len(_JPEG_START)
  while position + 4 <= len(data) and data[position] == 0xFF:
    marker = data[position + 1]
    if marker == _SCAN:
      return Header(height, width, frame, position, 'JPEG')
    if marker in _FRAMES and not frame:  # No decoder takes two.
      frame = position
      height = _integer(data[frame + 5 : frame + 7])
      width = _integer(data[frame + 7 : frame + 9])
    if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF:
      break  # It is unusual here, and has no length.
    position += 2 + _integer(data[position + 2 : position + 4])
  return Header(height, width, frame, format='JPEG')


def _is_one_scan(data: bytes, known: Header) -> bool:
  """Whether a JPEG's frame is stored row by row, in the given scan alone."""
  frame, scan = known.frame, known.scan
  if not scan or not frame or data[frame + 1] not in _SEQUENTIAL:
    return False
  # The scan must hold all components, else more scans follow it.
  return len(data) > scan + 5 and data[frame + 9] == data[scan + 4]


def _check_scans(data: bytes, position: int) -> None:
  """Raises CorruptImageError if too many scans follow in a JPEG's picture."""
  scans = 0
  while found := _MARKER.search(data, position):
    end = found.end()
    if found[0] == _JPEG_END:
      return
    scans += data[end - 1] == _SCAN
    if scans > _MOST_SCANS:
      raise CorruptImageError(
        f'JPEG of {len(data)} bytes with more than {_MOST_SCANS} scans, which'
        ' may take minutes to decode; save it as a baseline JPEG'
      )
    position = end + _integer(data[end : end + 2])


def _integer(data: bytes) -> int:
  return int.from_bytes(data, 'big')


def _truncated(kind: str, data: bytes) -> CorruptImageError:
  return CorruptImageError(f'truncated {kind} of {len(data)} bytes')


def _undecodable(data: bytes) -> CorruptImageError:
  return CorruptImageError(
    f'cannot decode {len(data)} bytes that start with {data[:8]!r}'
  )


def orientation(data: bytes) -> int:
  """Returns the EXIF orientation of a JPEG, 1 to 8; 1 needs no turn."""
  if not is_jpeg(data):
    return 1
  # Only the header is searched: all bytes would take a twentieth of decoding.
  end = _jpeg_header(data).scan or len(data)
  start = data.find(_EXIF_START, 0, end)
  if start < 0:
    return 1
  exif = Image.Exif()
  try:
    exif.load(data[start:end])
    found = exif.get(ExifTags.Base.Orientation, 1)
  except Exception:  # Damaged EXIF data may cause any exception.
    return 1
  return found if found in range(1, 9) else 1


def turn_upright(image: np.ndarray, found: int) -> np.ndarray:
  """Turns a decoded image upright by its EXIF orientation."""
  if found in (5, 6, 7, 8):
    image = cv2.transpose(image)
  horizontally, vertically = found in (2, 3, 6, 7), found in (3, 4, 7, 8)
  if horizontally or vertically:
    code = -1 if horizontally and vertically else 1 if horizontally else 0
    image = cv2.flip(image, code)
  return with_channels(image)


def decode(
  image: bytes | np.ndarray,
  channels: int,
  *,
  upright: bool = False,
  jpeg_dct: str = 'fast',
  max_pixels: int = MAX_PIXELS,
  known: Header | None = None,
  rows: int = 0,
  shrink: int = 1,
) -> np.ndarray:
  """Decodes an image, or checks an array that is already decoded.

  Args:
    image: an encoded image (JPEG, PNG, ...) or uint8 [h, w, c].
    channels: number of channels to return: 3 for RGB, 1 for grey. Grey becomes
      RGB by repetition, and RGB becomes grey by its luminance. An array may
      have any other number of channels if `channels` is the same number.
    upright: whether to rotate an encoded image by its EXIF orientation. The
      decoder of the released code does not.
    jpeg_dct: the cosine transform of the JPEG decoder. 'fast' is TensorFlow's
      default and therefore the paper code's; it is one grey level from
      'accurate' on average. JPEGs in CMYK are always decoded accurately.
    max_pixels: most pixels of an encoded image; a larger one is not decoded.
    known: the header of the image, if it was read before.
    rows: number of rows of a JPEG that are needed, or 0 for all; not with
      `upright` or `shrink`. The result may end soon after them.
    shrink: 1, 2, 4 or 8. A JPEG is decoded to this part of its height and
      width, rounded up, unless its decoder cannot. That averages pixels.

  Returns:
    uint8 [h, w, channels].

  Raises:
    CorruptImageError: see `header`; or the image cannot be decoded, or the data
      of a JPEG end before its rows do.
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
  known = known or header(image, max_pixels)
  if is_jpeg(image):
    fast = jpeg_dct == 'fast'
    decoded = _decode_jpeg(image, channels, fast, known, rows, shrink)
    if decoded is not None:
      turn = orientation(image) if upright else 1
      return turn_upright(decoded, turn) if turn > 1 else decoded
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


def _decode_jpeg(
  data: bytes, channels: int, fast: bool, known: Header, rows: int, shrink: int
) -> np.ndarray | None:
  """Decodes a JPEG, see `decode`; None if OpenCV may know it.

  Raises:
    CorruptImageError: its data end before its rows do.
  """
  options = {'colorspace': _COLOURS[channels], 'fastdct': fast}
  if shrink > 1:
    options['min_width'] = -(-known.width // shrink)
  buffer = None
  if rows and (kept := _rows_to_keep(data, known, rows)):
    # The decoder stops where the header says that the picture ends, and no bit
    # of the rows before changes.
    data = bytearray(data)
    data[known.frame + 5 : known.frame + 7] = kept.to_bytes(2, 'big')
    # It then warns of the data after these rows, and only writes here.
    buffer = np.empty((kept, known.width, channels), np.uint8)
  try:
    return simplejpeg.decode_jpeg(data, buffer=buffer, **options)
  except (ValueError, KeyError) as error:
    warning = str(error).lower()
  if any(words in warning for words in _ENDS_EARLY):
    raise _truncated('JPEG', data)
  if buffer is not None and 'extraneous' in warning:
    return buffer
  if not any(words in warning for words in _TOLERABLE):
    return None
  try:
    return simplejpeg.decode_jpeg(data, strict=False, **options)
  except ValueError:  # OpenCV knows more kinds of JPEG.
    return None


def _rows_to_keep(data: bytes, known: Header, rows: int) -> int:
  """Returns how many rows must be decoded for the first ones; 0 if all.

  JPEGs that are stored in several scans, or in CMYK, are decoded whole.
  """
  if not _is_one_scan(data, known):
    return 0
  first = known.frame + 11
  components = data[first - 2]
  if not 1 <= components <= 3:
    return 0
  factors = data[first : first + 3 * components : 3]
  coarse = max(i & 0x0F for i in factors)  # Rows of a row of colours.
  # Colours are interpolated between their rows, so one more is needed.
  kept = rows + (2 * coarse if coarse > 1 else 0)
  return kept if kept < known.height else 0


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
