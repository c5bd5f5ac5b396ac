"""Guards the random changes of colours and shapes, against Pillow and NumPy."""

import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data import ops
from vit_jax.data.ops import augment


def generator(seed=0):
  return np.random.default_rng(seed)


def picture(height=40, width=50, channels=3, seed=0):
  """A smooth gradient with noise, and not all of the values."""
  rows, columns = np.mgrid[:height, :width]
  smooth = 40 + 120 * rows / height + 60 * columns / width
  noise = generator(seed).uniform(-25, 25, (height, width, channels))
  return (smooth[:, :, None] + noise).astype(np.uint8)


def to_pillow(image):
  return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def from_pillow(image):
  array = np.asarray(image)
  return array if array.ndim == 3 else array[:, :, None]


def assert_close(found, expected, most):
  assert found.shape == expected.shape
  assert np.abs(found.astype(int) - expected.astype(int)).max() <= most


# Single changes.


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'ours, pillow',
  [
    (augment.auto_contrast, ImageOps.autocontrast),
    (augment.equalize, ImageOps.equalize),
    (lambda x: augment.RAND_AUGMENT['invert'](x, 1, None), ImageOps.invert),
    *(
      (
        lambda x, bits=bits: augment.posterize(x, bits),
        lambda x, bits=bits: ImageOps.posterize(x, bits),
      )
      for bits in (1, 4, 8)
    ),
    *(
      (
        lambda x, t=threshold: augment.solarize(x, t),
        lambda x, t=threshold: ImageOps.solarize(x, t),
      )
      for threshold in (0, 100, 256)
    ),
    *(
      (
        lambda x, f=factor: augment.brightness(x, f),
        lambda x, f=factor: ImageEnhance.Brightness(x).enhance(f),
      )
      for factor in (0.1, 0.7, 1.0, 1.9)
    ),
  ],
)
def test_changes_by_a_table_are_exactly_pillows(ours, pillow, channels):
  image = picture(channels=channels)
  np.testing.assert_array_equal(
    ours(image), from_pillow(pillow(to_pillow(image)))
  )


@pytest.mark.parametrize('factor', [0.1, 0.64, 1.0, 1.9])
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'ours, pillow',
  [
    (augment.contrast, ImageEnhance.Contrast),
    (augment.saturation, ImageEnhance.Color),
    (augment.sharpness, ImageEnhance.Sharpness),
  ],
)
def test_enhancements_are_pillows(ours, pillow, channels, factor):
  image = picture(channels=channels)
  expected = from_pillow(pillow(to_pillow(image)).enhance(factor))
  found = ours(image, factor)
  assert_close(found, expected, most=1 if factor <= 1 else 2)
  # Few pixels differ, so no rounding differs in general.
  assert (found != expected).mean() < 0.03
  if factor == 1:
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'ours, coefficients',
  [
    (lambda x: augment.shear_x(x, 0.3), (1, 0.3, 0, 0, 1, 0)),
    (lambda x: augment.shear_y(x, 0.3), (1, 0, 0, 0.3, 1, 0)),
    (lambda x: augment.translate(x, 13, 1), (1, 0, -13, 0, 1, 0)),
    (lambda x: augment.translate(x, -4, 0), (1, 0, 0, 0, 1, 4)),
    (lambda x: augment.translate(x, 40, 0), (1, 0, 0, 0, 1, -40)),
    (lambda x: augment.translate(x, -55, 1), (1, 0, 55, 0, 1, 0)),
  ],
)
def test_shears_and_translations_are_pillows(ours, coefficients, channels):
  image = picture(channels=channels)
  expected = to_pillow(image).transform(
    (50, 40),
    Image.Transform.AFFINE,
    coefficients,
    Image.Resampling.NEAREST,
    fillcolor=(128,) * 3 if channels == 3 else 128,
  )
  different = (ours(image) != from_pillow(expected)).any(axis=-1)
  # Libraries decide ties between two pixels differently.
  assert different.mean() < 0.01


@pytest.mark.parametrize('degrees', [0, 28, -28, 55, 90, 180])
@pytest.mark.parametrize('shape', [(40, 50), (41, 31)])
def test_rotations_are_pillows(degrees, shape):
  image = picture(*shape)
  expected = to_pillow(image).rotate(degrees, fillcolor=(128,) * 3)
  different = (augment.rotate(image, degrees) != np.asarray(expected)).any(-1)
  assert different.mean() < 0.01


# All operations.


@pytest.mark.parametrize(
  'text, message',
  [
    ('rand_augment(n=-1)', 'n must be a non-negative integer, got -1'),
    ('rand_augment(2, 31)', 'm must be a number from 0 to 30, got 31'),
    ('random_erasing(1.5)', r'p must lie in \[0, 1\], got 1.5'),
    ('random_erasing(min_aspect=5)', 'min_aspect=5, max_aspect=3.33'),
    ('colour_jitter(-0.1)', 'brightness must be at least 0, got -0.1'),
    ('colour_jitter(hue=0.6)', r'hue must lie in \[0, 0.5\] turns, got 0.6'),
  ],
)
def test_wrong_arguments(text, message):
  with pytest.raises(ValueError, match=message):
    ops.parse(text, image_size=8, channels=3)


@pytest.mark.parametrize('op', ['rand_augment(1)', 'colour_jitter'])
def test_colours_need_one_channel_or_three(op):
  parsed = ops.parse(op, image_size=8, channels=4)
  with pytest.raises(ValueError, match='of 4 channels has no colours'):
    parsed(np.zeros((8, 8, 4), np.uint8), generator())


# Random erasing.


def erased(op, image, rng):
  """Returns the box of an image of zeros that changed, or None."""
  rows, columns, _ = np.nonzero(op(image, rng))
  if not len(rows):
    return None
  box = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
  assert len(rows) == (box[2] - box[0]) * (box[3] - box[1])
  return box


def test_erased_boxes_and_their_distribution():
  op = augment.RandomErasing(colour=9)
  image = np.zeros((100, 120, 1), np.uint8)
  rng = generator()
  boxes = [erased(op, image, rng) for _ in range(4000)]
  found = np.array([box for box in boxes if box])
  assert abs(len(found) / 4000 - 0.25) < 6 * (0.25 * 0.75 / 4000) ** 0.5
  top, left, bottom, right = found.T
  area = (bottom - top) * (right - left) / 12000
  aspect = (right - left) / (bottom - top)
  # Sides are rounded to whole pixels, hence the tolerances.
  assert 0.018 < area.min() < 0.03
  assert 0.3 < area.max() < 0.335
  assert abs(area.mean() - (0.02 + 1 / 3) / 2) < 0.015
  assert 0.28 < aspect.min() < 0.35
  assert 2.9 < aspect.max() < 3.6
  # The logarithm is uniform, so both directions are equally frequent.
  assert abs(np.log(aspect).mean()) < 0.12
  assert abs(np.log(aspect).std() - math.log(1 / 0.09) / 12**0.5) < 0.1
  # Places are uniform.
  assert abs((top / (101 - (bottom - top))).mean() - 0.5) < 0.06
  assert abs((left / (121 - (right - left))).mean() - 0.5) < 0.06


# In preprocessings.


def test_operations_that_draw_are_not_kept_between_epochs():
  text = 'resize(12)|{}|resize(8)'
  for op in ('rand_augment', 'colour_jitter', 'random_erasing(1)'):
    made = ops.parse(text.format(op), image_size=8, channels=3)
    assert made.without_chance(picture(20, 20))[1] == 1
