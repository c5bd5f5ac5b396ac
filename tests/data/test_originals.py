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
