"""Decodes images to uint8 arrays, and detects truncated files."""

import contextlib
import io
import re
import threading
from collections.abc import Iterator

import cv2
import numpy as np
import simplejpeg
from PIL import ExifTags, Image

# The cosine transforms of the JPEG decoder. `fast` is TensorFlow's default and
# therefore the paper code's; it is one grey level from `accurate` on average.
JPEG_DCTS = ('fast', 'accurate')

_COLOURS = {1: 'GRAY', 3: 'RGB'}
_IMREAD_FLAGS = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}
_JPEG_START = b'\xff\xd8'
_JPEG_END = b'\xff\xd9'
# Markers of a JPEG's header: frames that store a picture row by row, unlike
# progressive ones; and the start of the scan.
_SEQUENTIAL = (0xC0, 0xC1)
_SCAN = 0xDA
# Progressive JPEGs have ten scans, few have thirty. Each costs a pass through
# the whole picture, even if it takes ten bytes of the file.
_MOST_SCANS = 100
# 134 megapixels, which is more than most cameras have; OpenCV's own limit is
# 2**30. A file of 34 bytes may state them all.
MAX_PIXELS = 2**27
# Pixels that the threads of a process may hold decoded at once, 1.6 GB; and the
# size of an image that never waits.
_ROOM = 2**29
_SMALL = 2**22
# Pillow's names of the formats that OpenCV decodes.
_FORMATS = (
  *('AVIF', 'BMP', 'DIB', 'GIF', 'JPEG', 'JPEG2000'),
  *('PPM', 'TIFF', 'WEBP'),
)
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # Tags of a TIFF.
# What the JPEG decoder warns of if it meets the end before the last row: in the
# middle of the data, or where a restart marker should be.
_ENDS_EARLY = ('premature end', 'found marker 0xd9')
_EXIF_START = b'Exif\x00\x00'
_PNG_START = b'\x89PNG\r\n\x1a\n'
_TIFF_STARTS = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')
_PNG_END = b'IEND\xaeB`\x82'
# FF followed by anything but a stuffed 00, a marker without a length (TEM or a
# restart), or a fill byte FF.
_JPEG_MARKER = re.compile(rb'\xff[^\x00\x01\xd0-\xd7\xff]')


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


class _Room:
  """Pixels of large images that threads may hold decoded at the same time."""

  def __init__(self, pixels: int):
    self._all = self._free = pixels
    self._changed = threading.Condition()

  @contextlib.contextmanager
  def __call__(self, pixels: int) -> Iterator[None]:
    """Waits until there is room for an image, and holds it.

    Args:
      pixels: of the image; more than there are wait until it is the only one.
    """
    pixels = min(pixels, self._all) if pixels > _SMALL else 0
    with self._changed:
      self._changed.wait_for(lambda: pixels <= self._free)
      self._free -= pixels
    try:
      yield
    finally:
      with self._changed:
        self._free += pixels
        self._changed.notify_all()


# Whoever decodes an image holds it until the large array is gone.
room = _Room(_ROOM)


def _jpeg_is_complete(data: bytes) -> bool:
  """Returns whether `data` holds the end marker of its first picture.

  Skips segments by their length, so that a thumbnail in the header or bytes
  after the end do not pass for the picture itself.
  """
  # A search through all bytes takes as long as the rest of Python's work.
  if data.endswith(_JPEG_END) and _jpeg_header(data)[1] > 0:
    return True
  return _JPEG_END[1] in _markers(data)


def _markers(data: bytes) -> Iterator[int]:
  """Yields the markers of a JPEG's first picture, to its end."""
  position = len(_JPEG_START)
  while found := _JPEG_MARKER.search(data, position):
    end = found.end()
    yield data[end - 1]
    if data[end - 1] == _JPEG_END[1]:
      return
    position = end + int.from_bytes(data[end : end + 2], 'big')


def _check_scans(data: bytes) -> None:
  """Raises CorruptImageError if a JPEG has more than _MOST_SCANS scans."""
  if _is_one_scan(data, *_jpeg_header(data)):
    return
  if sum(marker == _SCAN for marker in _markers(data)) > _MOST_SCANS:
    raise CorruptImageError(
      f'JPEG of {len(data)} bytes with more than {_MOST_SCANS} scans, which may'
      ' take minutes to decode; save it as a baseline JPEG'
    )


def _truncated_jpeg(data: bytes) -> CorruptImageError:
  return CorruptImageError(f'truncated JPEG of {len(data)} bytes')


def _check_pixels(
  height: int, width: int, max_pixels: int, of: str = ''
) -> None:
  if height * width > max_pixels:
    raise CorruptImageError(
      f'{height} x {width} pixels (height x width){of} are more than'
      f' max_pixels={max_pixels:,}'
    )


def _size(data: bytes, max_pixels: int) -> tuple[int, int]:
  """Reads (height, width) in pixels from the header of an encoded image.

  Raises:
    CorruptImageError: no known header is found, or a tile of a TIFF has more
      than `max_pixels` pixels, whatever the image has.
  """
  # Data sets may hold millions of small PNGs, so this avoids a library call.
  if data.startswith(_PNG_START):
    width, height = data[16:20], data[20:24]
    return int.from_bytes(height, 'big'), int.from_bytes(width, 'big')
  try:
    if is_jpeg(data):
      return simplejpeg.decode_jpeg_header(data, strict=False)[:2]
  except (ValueError, KeyError):  # OpenCV and Pillow know more kinds of JPEG.
    pass
  try:
    with Image.open(io.BytesIO(data), formats=_FORMATS) as header:
      size = header.height, header.width
      tags = getattr(header, 'tag_v2', {})
      tile = tags.get(_TILE_LENGTH, 0), tags.get(_TILE_WIDTH, 0)
  except Image.DecompressionBombError as error:  # Pillow has a limit, too.
    raise CorruptImageError(str(error)) from error
  except Exception as error:  # A damaged header may cause any exception.
    raise _undecodable(data) from error
  _check_pixels(*tile, max_pixels, ' of a tile')
  return size


def size(data: bytes, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
  """Reads (height, width) in pixels from the header of an encoded image.

  The size is that of the stored picture, whatever its EXIF orientation.

  Raises:
    CorruptImageError: a JPEG or PNG is truncated, no known header is found, it
      states more than `max_pixels` pixels, or a JPEG has too many scans.
  """
  # OpenCV may decode a truncated file to a picture that is partly grey.
  if is_jpeg(data) and not _jpeg_is_complete(data):
    raise _truncated_jpeg(data)
  if data.startswith(_PNG_START) and data.rfind(_PNG_END) < 0:
    raise CorruptImageError(f'truncated PNG of {len(data)} bytes')
  height, width = _size(data, max_pixels)
  _check_pixels(height, width, max_pixels)
  if is_jpeg(data):
    _check_scans(data)
  return height, width


def is_jpeg(data: bytes) -> bool:
  """Returns whether the bytes begin like a JPEG."""
  return data.startswith(_JPEG_START)


def orientation(data: bytes) -> int:
  """Returns the EXIF orientation of a JPEG, 1 to 8; 1 needs no turn.

  Raises:
    CorruptImageError: it has more pixels than Pillow's limit.
  """
  if not is_jpeg(data):
    return 1
  # Only the header is searched: all bytes would take a twentieth of decoding.
  _, scan = _jpeg_header(data)
  if data.find(_EXIF_START, 0, scan or len(data)) < 0:
    return 1
  try:
    with Image.open(io.BytesIO(data), formats=('JPEG',)) as image:
      found = image.getexif().get(ExifTags.Base.Orientation, 1)
  except Image.DecompressionBombError as error:  # See `own_process`.
    raise CorruptImageError(str(error)) from error
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


def _first_rows(data: bytes, rows: int) -> tuple[bytes | bytearray, int]:
  """Shortens a JPEG so that decoding ends soon after its first rows.

  The header then states fewer rows. The decoder stops there, and the rows that
  are asked for do not change by a bit. JPEGs that are stored in several scans,
  or in CMYK, are returned as they are.

  Args:
    data: a JPEG.
    rows: number of rows that are needed, at least 1.

  Returns:
    The JPEG, and the number of rows that it then states; 0 if none was changed.
  """
  frame, scan = _jpeg_header(data)
  if not _is_one_scan(data, frame, scan) or data[frame + 9] > 3:
    return data, 0
  components = data[frame + 11 : frame + 11 + 3 * data[frame + 9] : 3]
  coarse = max(i & 0x0F for i in components)  # Rows of a row of colours.
  # Colours are interpolated between their rows, so one more is needed.
  kept = rows + (2 * coarse if coarse > 1 else 0)
  if kept >= int.from_bytes(data[frame + 5 : frame + 7], 'big'):
    return data, 0
  shortened = bytearray(data)
  shortened[frame + 5 : frame + 7] = kept.to_bytes(2, 'big')
  return shortened, kept


def _is_one_scan(data: bytes, frame: int, scan: int) -> bool:
  """Whether a frame that is stored row by row has no scan but the given one."""
  if not frame or not scan:
    return False
  # The scan must hold all components, else more scans follow it.
  return data[frame + 9] == (data[scan + 4] if scan + 4 < len(data) else 0)


def _jpeg_header(data: bytes) -> tuple[int, int]:
  """Returns where the frame and the scan of a JPEG begin; 0: not found.

  The frame only counts if it is stored row by row.
  """
  frame, position = 0, len(_JPEG_START)
  while position + 4 <= len(data) and data[position] == 0xFF:
    marker = data[position + 1]
    if marker == _SCAN:
      return frame, position
    if marker in _SEQUENTIAL:
      frame = position
    if marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF:
      break  # It is unusual here, and has no length.
    position += 2 + int.from_bytes(data[position + 2 : position + 4], 'big')
  return frame, 0


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
  rows: int = 0,
  shrink: int = 1,
  width: int = 0,
) -> np.ndarray:
  """Decodes an image, or checks an array that is already decoded.

  Args:
    image: an encoded image (JPEG, PNG, ...) or uint8 [h, w, c].
    channels: number of channels to return: 3 for RGB, 1 for grey. Grey becomes
      RGB by repetition, and RGB becomes grey by its luminance. An array may
      have any other number of channels if `channels` is the same number.
    upright: whether to rotate an encoded image by its EXIF orientation. The
      decoder of the released code does not.
    jpeg_dct: one of JPEG_DCTS. JPEGs in CMYK are always decoded accurately.
    max_pixels: most pixels of an encoded image; a larger one is not decoded.
    rows: number of rows of an upright JPEG that are needed, or 0 for all. The
      result may end soon after them.
    shrink: 1, 2, 4 or 8. A JPEG is decoded to this part of its height and
      width, rounded up, unless its decoder cannot. That averages pixels.
    width: what `size` found; 0 looks for it, and checks the image.

  Returns:
    uint8 [h, w, channels].

  Raises:
    CorruptImageError: see `size`; or the image cannot be decoded, or the data
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
  if not width:
    _, width = size(image, max_pixels)
  if is_jpeg(image):
    turn = orientation(image) if upright else 1
    decoded = _decode_jpeg(
      image,
      channels,
      jpeg_dct,
      rows if turn == 1 else 0,
      width,
      -(-width // shrink) if shrink > 1 else 0,
    )
    if decoded is not None:
      return turn_upright(decoded, turn) if turn > 1 else decoded
  if image.startswith(_TIFF_STARTS) and (decoded := _cielab_tiff(image)):
    return _convert_channels(np.asarray(decoded), channels)
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


def _cielab_tiff(data: bytes) -> Image.Image | None:
  """Decodes a TIFF in CIELab, whose colours OpenCV gets wrong by 15 levels.

  Returns:
    The picture in RGB, upright as OpenCV's TIFFs are; None for other TIFFs.
  """
  try:
    with Image.open(io.BytesIO(data), formats=('TIFF',)) as image:
      return image.convert('RGB') if image.mode == 'LAB' else None
  except Exception as error:  # A damaged file may cause any exception.
    raise _undecodable(data) from error


def _decode_jpeg(
  data: bytes,
  channels: int,
  jpeg_dct: str,
  rows: int,
  width: int,
  min_width: int,
) -> np.ndarray | None:
  """Decodes a JPEG, see `decode`; None if OpenCV may know it.

  Raises:
    CorruptImageError: its data end before its rows do.
  """
  options = {'fastdct': jpeg_dct == 'fast', 'min_width': min_width}
  data, kept = _first_rows(data, rows) if rows else (data, 0)
  buffer = None
  try:
    if kept:
      # The decoder warns of what follows these rows, and then only writes here.
      size = kept, width
      if min_width:
        size = simplejpeg.decode_jpeg_header(
          data, min_width=min_width, strict=False
        )[:2]
      buffer = np.empty((*size, channels), np.uint8)
    return simplejpeg.decode_jpeg(
      data, _COLOURS[channels], buffer=buffer, **options
    )
  except (ValueError, KeyError) as error:
    warning = str(error).lower()
  if any(words in warning for words in _ENDS_EARLY):
    raise _truncated_jpeg(data)
  if kept and 'extraneous' in warning:
    return buffer
  try:  # Other warnings are tolerated.
    return simplejpeg.decode_jpeg(
      data, _COLOURS[channels], strict=False, **options
    )
  except ValueError:  # OpenCV knows more kinds of JPEG.
    return None


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
