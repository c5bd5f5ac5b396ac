"""Guards that operations match their originals in other code.

NumPy references follow the originals' definitions. With TensorFlow installed,
`-m tensorflow` also compares the whole list with TensorFlow itself.
"""

import math

import numpy as np
import pytest
import scipy.stats

from vit_jax.data import ops

# Two photographs that ship inside scikit-learn, 427 x 640.
# Sizes to which the originals resize photographs.


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
  found = np.array([op.box(height, width, rng)[2:] for _ in range(10_000)])
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
  found = np.array([op.box(height, width, rng)[2:] for _ in range(10_000)])
  for measure in (
    lambda sides: sides[:, 0] * sides[:, 1],
    lambda sides: sides[:, 1] / sides[:, 0],
  ):
    assert scipy.stats.ks_2samp(measure(found), measure(expected)).pvalue > 1e-3
