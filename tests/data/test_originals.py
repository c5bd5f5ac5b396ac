"""Guards that operations match their originals in other code.

NumPy references follow the originals' definitions. With TensorFlow installed,
`-m tensorflow` also compares the whole list with TensorFlow itself.
"""

import math
import pathlib

import cv2
import numpy as np
import pytest
import scipy.stats
import sklearn

from vit_jax.data import ops

# Two photographs that ship inside scikit-learn, 427 x 640.
PHOTOGRAPHS = [
  pathlib.Path(sklearn.__file__).parent / 'datasets' / 'images' / name
  for name in ('china.jpg', 'flower.jpg')
]
# Sizes to which the originals resize photographs.
SIZES = [(256, 384), (224, 224), (448, 671), (600, 200)]


@pytest.fixture(scope='module', params=PHOTOGRAPHS, ids=lambda path: path.stem)
def photograph(request):
  return ops.decode(request.param.read_bytes(), 3)


def _small(photograph):
  """Shrinks to 32 x 32, the size of CIFAR's images."""
  return cv2.resize(photograph, (32, 32), interpolation=cv2.INTER_AREA)


def _area_weights(old, new):
  """Returns the share of each new pixel that each old one covers."""
  starts = np.arange(new)[:, None] * old / new
  ends = starts + old / new
  cells = np.arange(old)[None, :]
  overlap = np.minimum(ends, cells + 1) - np.maximum(starts, cells)
  return np.maximum(overlap, 0) * new / old


def _bilinear_weights(old, new):
  centres = (np.arange(new) + 0.5) * old / new - 0.5
  low = np.floor(centres).astype(int)
  weights = np.zeros((new, old))
  for index, (cell, place) in enumerate(zip(low, centres, strict=True)):
    share = place - cell
    weights[index, np.clip(cell, 0, old - 1)] += 1 - share
    weights[index, np.clip(cell + 1, 0, old - 1)] += share
  return weights


def _reference(image, size, weights):
  """Resizes by weight matrices: float64 [height, width, 3]."""
  rows, columns = (
    weights(old, new) for old, new in zip(image.shape, size, strict=False)
  )
  return np.einsum(
    'ih,jw,hwc->ijc', rows, columns, image.astype(np.float64), optimize=True
  )


@pytest.mark.parametrize('size', SIZES)
def test_bilinear_matches_the_released_code_except_for_rounding(
  photograph, size
):
  for image in (photograph, _small(photograph)):
    found = ops.Resize(size)(image, None)
    expected = _reference(image, size, _bilinear_weights)
    # OpenCV's weights have 11 bits.
    assert np.abs(found - expected).max() < 1
    assert np.abs(found - expected).mean() < 0.3
    # big_vision truncates: half a level less.
    assert np.abs(found - np.floor(expected)).mean() <= 0.51


@pytest.mark.parametrize('size', [*SIZES, (427, 700), (500, 640)])
def test_area_matches_big_vision(photograph, size):
  for image in (photograph, _small(photograph)):
    found = ops.Resize(size, method='area')(image, None)
    expected = np.floor(_reference(image, size, _area_weights) + 1e-6)
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 2e-3


def test_area_repeats_pixels_to_a_multiple(photograph):
  small = _small(photograph)
  found = ops.ResizeSmall(448, method='area')(small, None)
  expected = small.repeat(14, axis=0).repeat(14, axis=1)
  np.testing.assert_array_equal(found, expected)
  # Bilinear gives another picture.
  other = ops.ResizeSmall(448)(small, None)
  assert np.abs(found.astype(int) - other).mean() > 2


def _tensorflow_box(height, width, rng):
  """Draws a crop step by step as TensorFlow's kernel does."""
  area = height * width
  for _ in range(100):
    aspect = rng.uniform(0.75, 1.33)
    low = int(np.rint(math.sqrt(0.05 * area / aspect)))
    high = int(np.rint(math.sqrt(area / aspect)))
    if np.rint(high * aspect) > width:
      high = int((width + 0.5 - 1e-7) / aspect)
    high = min(high, height)
    drawn = min(low, high)
    if drawn < high:
      drawn += int(rng.integers(high - drawn + 1))
    wide = int(np.rint(drawn * aspect))
    if wide * drawn < 0.05 * area:
      drawn += 1
      wide = int(np.rint(drawn * aspect))
    if wide * drawn > area:
      drawn -= 1
      wide = int(np.rint(drawn * aspect))
    fits = 0 < wide <= width and 0 < drawn <= height
    if fits and 0.05 * area <= wide * drawn <= area:
      return drawn, wide
  return height, width


@pytest.mark.parametrize(
  'height, width', [(375, 500), (500, 375), (32, 32), (224, 224), (90, 400)]
)
def test_inception_crops_have_the_distribution_of_tensorflows_algorithm(
  height, width
):
  op, rng = ops.InceptionCrop(8), np.random.default_rng(0)
  found = np.array([op.region(height, width, rng)[2:4] for _ in range(10_000)])
  expected = np.array(
    [_tensorflow_box(height, width, rng) for _ in range(10_000)]
  )
  for measure in (
    lambda sides: sides[:, 0] * sides[:, 1],
    lambda sides: sides[:, 1] / sides[:, 0],
  ):
    test = scipy.stats.ks_2samp(measure(found), measure(expected))
    assert test.pvalue > 1e-3, test


# With TensorFlow --------------------------------------------------------------


@pytest.fixture(scope='module')
def tf():
  return pytest.importorskip('tensorflow')


@pytest.mark.tensorflow
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('method', ops.METHODS)
def test_resizing_matches_tensorflow(tf, photograph, size, method):
  for image in (photograph, _small(photograph)):
    expected = tf.image.resize(image, size, method=method).numpy()
    found = ops.Resize(size, method=method)(image, None)
    if method == 'area':
      # TensorFlow's sums fall just short of whole numbers.
      expected = np.floor(expected + 1e-3)
      assert np.abs(found - expected).mean() < 0.05
    assert np.abs(found - expected).mean() < 0.3


@pytest.mark.tensorflow
def test_resize_small_matches_big_vision_with_tensorflow(tf, photograph):
  for size in (256, 448):
    for image in (photograph, _small(photograph)):
      factor = np.float32(size) / np.float32(min(image.shape[:2]))
      sides = [int(np.rint(np.float32(n) * factor)) for n in image.shape[:2]]
      expected = np.floor(tf.image.resize(image, sides, method='area').numpy())
      found = ops.ResizeSmall(size, method='area')(image, None)
      assert found.shape == expected.shape
      # TensorFlow truncates sums that fall just short of a whole number.
      assert np.abs(found - expected).max() <= 1
      assert np.abs(found - expected).mean() < 0.2


@pytest.mark.tensorflow
@pytest.mark.parametrize('height, width', [(375, 500), (32, 32)])
def test_inception_crops_have_the_distribution_of_tensorflow(tf, height, width):
  draw = tf.function(
    lambda: tf.image.sample_distorted_bounding_box(
      [height, width, 3],
      tf.zeros([1, 0, 4]),
      area_range=(0.05, 1),
      min_object_covered=0,
      use_image_if_no_bounding_boxes=True,
    )[1]
  )
  expected = np.array([draw().numpy()[:2] for _ in range(10_000)])
  op, rng = ops.InceptionCrop(8), np.random.default_rng(0)
  found = np.array([op.region(height, width, rng)[2:4] for _ in range(10_000)])
  for measure in (
    lambda sides: sides[:, 0] * sides[:, 1],
    lambda sides: sides[:, 1] / sides[:, 0],
  ):
    assert scipy.stats.ks_2samp(measure(found), measure(expected)).pvalue > 1e-3


@pytest.mark.tensorflow
@pytest.mark.parametrize('path', PHOTOGRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize('channels', [1, 3])
def test_decoded_jpegs_match_tensorflow(tf, path, channels):
  data = path.read_bytes()
  # TensorFlow's default, which the originals use.
  fast = tf.image.decode_jpeg(data, channels).numpy()
  np.testing.assert_array_equal(ops.decode(data, channels), fast)
  accurate = tf.image.decode_jpeg(
    data, channels, dct_method='INTEGER_ACCURATE'
  ).numpy()
  np.testing.assert_array_equal(
    ops.decode(data, channels, jpeg_dct='accurate'), accurate
  )
  assert 0 < np.abs(fast.astype(int) - accurate).mean() < 2


@pytest.mark.tensorflow
def test_crops_and_pngs_match_tensorflow(tf, photograph):
  png = cv2.imencode('.png', photograph[:, :, ::-1])[1].tobytes()
  np.testing.assert_array_equal(
    ops.decode(png, 3), tf.io.decode_image(png, 3).numpy()
  )
  # big_vision's offsets are half of the remainder, rounded down.
  height, width = photograph.shape[:2]
  expected = tf.image.crop_to_bounding_box(
    photograph, (height - 224) // 2, (width - 225) // 2, 224, 225
  )
  found = ops.CentralCrop((224, 225))(photograph, None)
  np.testing.assert_array_equal(found, expected.numpy())


def _tensorflow_equivalents(tf):
  """Maps the text of each operation to its equivalent in TensorFlow."""
  return {
    'flip': lambda image: tf.image.flip_left_right(image),
    'pad(4)': lambda image: tf.pad(image, [[4, 4], [4, 4], [0, 0]]),
    "pad(4, mode='reflect')": lambda image: tf.pad(
      image, [[4, 4], [4, 4], [0, 0]], mode='REFLECT'
    ),
    # 2 rows leave below, 3 columns at the left; their mirror images enter.
    'shift(2, -3)': lambda image: tf.pad(
      image, [[2, 0], [0, 3], [0, 0]], mode='REFLECT'
    )[:-2, 3:],
    "shift(-2, 3, 'zeros')": lambda image: tf.pad(
      image, [[0, 2], [3, 0], [0, 0]]
    )[2:, :-3],
    'trim(2)': lambda image: tf.image.crop_to_bounding_box(
      image, 2, 2, image.shape[0] - 4, image.shape[1] - 4
    ),
    'central_crop(32)': lambda image: tf.image.crop_to_bounding_box(
      image, (image.shape[0] - 32) // 2, (image.shape[1] - 32) // 2, 32, 32
    ),
  }


class _ZeroDraws:
  """A generator that always draws 0, so that random operations act."""

  def random(self):
    return 0.0


@pytest.mark.tensorflow
def test_operations_that_only_move_pixels_match_tensorflow(tf, photograph):
  for text, expected in _tensorflow_equivalents(tf).items():
    [op] = ops.parse(text, image_size=32, channels=3).ops
    np.testing.assert_array_equal(
      op(photograph, _ZeroDraws()), expected(photograph).numpy(), err_msg=text
    )


@pytest.mark.tensorflow
def test_random_crops_have_the_distribution_of_tensorflow(tf):
  # The value of a crop's first pixel identifies its offset.
  places = np.arange(40 * 50, dtype=np.int32).reshape(40, 50, 1)
  draw = tf.function(lambda: tf.image.random_crop(places, (32, 32, 1))[0, 0, 0])
  expected = np.array([int(draw()) for _ in range(10_000)])
  op, rng = ops.RandomCrop(32), np.random.default_rng(0)
  found = np.array([op(places, rng)[0, 0, 0] for _ in range(10_000)])
  for measure in (lambda place: place // 50, lambda place: place % 50):
    assert scipy.stats.ks_2samp(measure(found), measure(expected)).pvalue > 1e-3


def test_every_operation_is_compared():
  compared = {'resize', 'resize_small', 'inception_crop', 'random_crop'}
  moved = {text.partition('(')[0] for text in _tensorflow_equivalents(None)}
  # The paper's code has none of these; test_augment.py compares them.
  others = {'colour_jitter', 'rand_augment', 'random_erasing'}
  assert compared | moved | others == set(ops.OPS)
