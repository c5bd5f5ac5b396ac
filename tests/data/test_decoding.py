"""Guards decoding: exact pixels, and an error for every incomplete file."""

import struct
import threading
import zlib
from concurrent import futures

import cv2
import numpy as np
import pytest
import simplejpeg

from vit_jax.data import ops
from vit_jax.data.ops import decoding


def noise(height, width, channels=3, seed=0):
  return np.random.default_rng(seed).integers(
    0, 256, (height, width, channels), dtype=np.uint8
  )


def encode(image, extension):
  """Encodes uint8 [h, w, 3] RGB or [h, w, 1]."""
  if image.shape[2] == 3:
    image = image[:, :, ::-1]
  return cv2.imencode(extension, image)[1].tobytes()


def with_exif(jpeg, *, orientation=1, thumbnail=b''):
  """Inserts an EXIF segment: one orientation tag, then `thumbnail`."""
  tiff = b'MM\x00*' + struct.pack('>IH', 8, 1)
  tiff += struct.pack('>HHIHH', 0x0112, 3, 1, orientation, 0) + bytes(4)
  payload = b'Exif\x00\x00' + tiff + thumbnail
  segment = b'\xff\xe1' + struct.pack('>H', len(payload) + 2) + payload
  return jpeg[:2] + segment + jpeg[2:]


def test_decode_png_returns_the_stored_rgb():
  image = np.array([[[255, 0, 0], [0, 0, 200]]], np.uint8)
  np.testing.assert_array_equal(ops.decode(encode(image, '.png'), 3), image)


def test_decode_array_converts_channels():
  grey = noise(2, 3, 1)
  np.testing.assert_array_equal(ops.decode(grey, 3), np.repeat(grey, 3, 2))
  five = noise(2, 3, 5)
  assert ops.decode(five, 5) is five
  with pytest.raises(ValueError, match='image of 5 channels to 3'):
    ops.decode(five, 3)
  with pytest.raises(ValueError, match='to 4 channels; choose from'):
    ops.decode(encode(noise(2, 2), '.png'), 4)


def jpeg_of_scans(scans, *, marker=0xC2, side=256, between=b''):
  """Builds a flat grey JPEG that is stored in many scans, byte by byte.

  Args:
    scans: their number; of colour, one more for each of the two colours.
    marker: of the frame, whose scans hold one component each.
    side: height and width in pixels.
    between: bytes before each scan.
  """

  def segment(marker, payload):
    return bytes([0xFF, marker]) + struct.pack('>H', len(payload) + 2) + payload

  components = (1,) if marker == 0xC2 else (1, 2, 3)
  data = b'\xff\xd8' + segment(0xDB, bytes([0]) + bytes([8] * 64))
  # All codes are 0: no difference of the mean, no other coefficient.
  for kind in (0x00, 0x10):
    data += segment(0xC4, bytes([kind, 1] + [0] * 15 + [0]))
  frame = struct.pack('>BHHB', 8, side, side, len(components))
  frame += b''.join(bytes([i, 0x11, 0]) for i in components)
  data += segment(marker, frame)
  last = 0 if marker == 0xC2 else 63
  content = bytes(side * side // 64)  # At least a bit of each of two codes.
  for number in (1,) * scans + components[1:]:
    data += between + segment(0xDA, bytes([1, number, 0, 0, last, 0])) + content
  return data + b'\xff\xd9'


@pytest.mark.parametrize('marker', [0xC0, 0xC2])
def test_scans_are_counted_before_decoding(marker, monkeypatch):
  few = jpeg_of_scans(90, marker=marker)
  decoded = ops.decode(few, 3)
  np.testing.assert_array_equal(decoded, np.full((256, 256, 3), 128))
  # Bytes that look like a scan in a film after the picture, or a comment.
  comment = b'\xff\xfe' + struct.pack('>H', 302) + b'\xff\xda' * 150
  many = b'\xff\xda' * 200
  for data in (few + many, few[:2] + comment + few[2:]):
    np.testing.assert_array_equal(ops.decode(data, 3), decoded)
  monkeypatch.setattr(simplejpeg, 'decode_jpeg', None)
  # No length follows a TEM marker, so it hides no scan.
  for between in (b'', b'\xff\x01'):
    data = jpeg_of_scans(120, marker=marker, between=between)
    with pytest.raises(ops.CorruptImageError, match='more than 100 scans'):
      ops.decode(data, 3)


@pytest.mark.parametrize('preprocess', ['resize', 'inception_crop'])
@pytest.mark.parametrize(
  'sampling, options',
  [
    ('444', ()),
    ('420', ()),
    ('420', (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)),
    ('420', (cv2.IMWRITE_JPEG_RST_INTERVAL, 2)),
  ],
)
def test_data_that_end_early_are_truncation(preprocess, sampling, options):
  jpeg = jpeg_of(noise(160, 160), sampling, *options)
  lying = jpeg.replace(
    struct.pack('>HH', 160, 160), struct.pack('>HH', 400, 160)
  )
  parsed = ops.parse(preprocess, image_size=20, channels=3)
  assert parsed(jpeg, np.random.default_rng(0)).shape == (20, 20, 3)
  for data in (jpeg[: len(jpeg) // 8] + b'\xff\xd9', lying):
    with pytest.raises(ops.CorruptImageError, match='truncated JPEG'):
      parsed(data, np.random.default_rng(0))


@pytest.mark.parametrize('orientation', range(1, 9))
def test_exif_orientations_are_opencvs(orientation):
  jpeg = with_exif(encode(noise(16, 24), '.jpg'), orientation=orientation)
  expected = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
  options = dict(upright=True, jpeg_dct='accurate')
  np.testing.assert_array_equal(ops.decode(jpeg, 3, **options), expected)
  # An operation sees the size of the upright image.
  crop = ops.parse('random_crop', image_size=(12, 9), channels=3, **options)
  plain = ops.parse('random_crop', image_size=(12, 9), channels=3)
  for seed in range(3):
    np.testing.assert_array_equal(
      crop(jpeg, np.random.default_rng(seed)),
      plain(expected, np.random.default_rng(seed)),
    )


def jpeg_of(image, sampling, *options):
  """Encodes with the given subsampling of colours, as in `411`."""
  number = getattr(cv2, f'IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}')
  settings = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, number, *options]
  return cv2.imencode('.jpg', image, settings)[1].tobytes()


@pytest.mark.parametrize('sampling', ['444', '422', '420', '440', '411'])
@pytest.mark.parametrize('dct', ['fast', 'accurate'])
@pytest.mark.parametrize('channels', [1, 3])
def test_the_first_rows_of_a_jpeg_are_exact(sampling, dct, channels):
  jpeg = jpeg_of(noise(100, 40), sampling)
  whole = ops.decode(jpeg, channels, jpeg_dct=dct)
  lengths = []
  for rows in range(1, 101):
    part = ops.decode(jpeg, channels, jpeg_dct=dct, rows=rows)
    np.testing.assert_array_equal(part[:rows], whole[:rows])
    lengths.append(len(part))
  assert rows <= len(part)
  # Not much is decoded in vain.
  assert all(n <= rows + 8 for rows, n in enumerate(lengths, 1))


@pytest.mark.parametrize('channels', [1, 3])
def test_jpegs_are_decoded_fast_or_accurately(channels):
  jpeg = encode(cv2.GaussianBlur(noise(64, 64), (9, 9), 0), '.jpg')
  fast, accurate = (
    ops.parse('', image_size=64, channels=channels, jpeg_dct=dct)(jpeg, None)
    for dct in ('fast', 'accurate')
  )
  # OpenCV decodes to BGR.
  found = cv2.imdecode(np.frombuffer(jpeg, np.uint8), 1 if channels == 3 else 0)
  found = found[:, :, ::-1] if channels == 3 else found[:, :, None]
  np.testing.assert_array_equal(accurate, found)
  difference = np.abs(fast.astype(int) - accurate)
  assert fast.shape == accurate.shape
  assert 0 < difference.mean() < 2
  assert difference.max() < 20


@pytest.mark.parametrize(
  'suffix',
  ['.jpg', '.png', '.webp', '.bmp', '.tif', '.jp2', '.ppm', '.gif', '.avif'],
)
def test_max_pixels_is_checked_before_decoding(suffix, monkeypatch):
  if not cv2.haveImageWriter(f'a{suffix}'):
    pytest.skip(f'OpenCV {cv2.__version__} writes no {suffix}')
  data = encode(noise(48, 80), suffix)
  assert ops.decode(data, 3, max_pixels=3840).shape == (48, 80, 3)
  # A too large image must reach neither decoder.
  monkeypatch.setattr(cv2, 'imdecode', None)
  monkeypatch.setattr(simplejpeg, 'decode_jpeg', None)
  parsed = ops.parse('', image_size=48, channels=3, max_pixels=3839)
  with pytest.raises(
    ops.CorruptImageError,
    match=r'^48 x 80 pixels .* more than max_pixels=3,839$',
  ):
    parsed(data, None)


def test_a_tile_is_no_larger_than_an_image():
  def tiff(side):
    tags = [(256, 8), (257, 8), (258, 8), (259, 8), (262, 1), (277, 1)]
    data = zlib.compress(bytes([77]) * side * side)
    tags += [(322, side), (323, side), (324, 8), (325, len(data))]
    start = struct.pack('<I', 8 + len(data))
    tags = [struct.pack('<HHII', tag, 4, 1, value) for tag, value in tags]
    tags = struct.pack('<H', len(tags)) + b''.join(tags) + bytes(4)
    return b'II*\0' + start + data + tags

  decoded = ops.decode(tiff(48), 3, max_pixels=48 * 48)
  np.testing.assert_array_equal(decoded, np.full((8, 8, 3), 77))
  with pytest.raises(ops.CorruptImageError, match=r'48 x 48 pixels .*tile'):
    ops.decode(tiff(48), 3, max_pixels=48 * 48 - 1)


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
@pytest.mark.parametrize('cut', [1, 2, 12, 300])
def test_truncated_files(kind, cut):
  data = encode(noise(32, 32), '.jpg' if kind == 'JPEG' else '.png')
  with pytest.raises(ops.CorruptImageError, match=f'truncated {kind}'):
    ops.decode(data[:-cut], 3)


def test_progressive_jpegs_and_trailing_bytes_are_accepted():
  image = noise(32, 48)
  progressive = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
  progressive = progressive[1].tobytes()
  assert progressive.count(b'\xff\xda') > 1  # Several scans.
  assert ops.decode(progressive, 3).shape == (32, 48, 3)
  with pytest.raises(ops.CorruptImageError):
    ops.decode(progressive[: progressive.rfind(b'\xff\xda')], 3)
  # A camera may write bytes after the picture, such as a second picture.
  for trailer in (b'\xff\xda trailer', progressive[:-20], bytes(10)):
    assert ops.decode(progressive + trailer, 3).shape == (32, 48, 3)


def test_what_the_decoder_leaves_as_it_was_in_memory_is_no_picture():
  jpeg = jpeg_of(noise(64, 64), '420', cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
  # It breaks off in a table between two scans.
  cut = jpeg.rfind(b'\xff\xc4') + 10
  for options in ({}, {'rows': 9}):
    with pytest.raises(ops.CorruptImageError):
      ops.decode(jpeg[:cut] + b'\xff\xd9', 3, **options)


def test_a_complete_thumbnail_does_not_hide_truncation():
  thumbnail = encode(noise(8, 8), '.jpg')
  jpeg = with_exif(encode(noise(32, 32), '.jpg'), thumbnail=thumbnail)
  assert ops.decode(jpeg, 3).shape == (32, 32, 3)
  # Cut the picture after its whole thumbnail.
  end = jpeg.find(thumbnail) + len(thumbnail)
  for cut in (end, end + 40, len(jpeg) - 2):
    with pytest.raises(ops.CorruptImageError):
      ops.decode(jpeg[:cut], 3)


@pytest.mark.parametrize('data', [b'', b'no image', b'\x89PNG', b'\xff\xd8'])
def test_undecodable_bytes(data):
  with pytest.raises(ops.CorruptImageError):
    ops.decode(data, 3)


def test_only_some_threads_decode_at_once(monkeypatch):
  monkeypatch.setattr(decoding, 'TURNS', threading.Semaphore(1))
  data = encode(noise(9, 9), '.png')
  parsed = ops.parse('resize', image_size=8, channels=3)
  with futures.ThreadPoolExecutor() as pool:
    with decoding.TURNS:
      waiting = [
        pool.submit(parsed, data, np.random.default_rng(0)),
        pool.submit(parsed.without_chance, data),
      ]
      assert not futures.wait(waiting, timeout=0.5).done
    assert waiting[0].result(60).shape == (8, 8, 3)
    assert waiting[1].result(60)[0].shape == (8, 8, 3)
