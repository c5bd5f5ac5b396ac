"""Guards colour classes and the three targets, by literals and by NumPy."""

import numpy as np
import pytest

from vit_jax.losses import targets

NAMES = {1: 'mean_colour', 4: 'downsized'}  # Cells of a side -> the target.


def _images(count, size, channels):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, *size, channels), dtype=np.uint8)


def _class_of(colour, size=4):
  image = np.broadcast_to(np.uint8(colour), (1, 1, size, size, len(colour)))
  return int(targets.colour_classes(image, 1)[0, 0, 0])


@pytest.mark.parametrize(
  'colour, expected',
  [
    ((0, 0, 0), 0),
    ((255, 255, 255), 511),
    ((31, 31, 31), 0),
    ((64, 96, 255), 64 * 2 + 8 * 3 + 7),
    # Colours of fewer channels have fewer classes.
    ((255,), 7),
    ((128, 32), 8 * 4 + 1),
  ],
)
def test_classes_of_colours(colour, expected):
  assert _class_of(colour) == expected


def _naive_classes(images, side, high, wide):
  """Returns the classes, by loops and floating-point means."""
  rows, columns = images.shape[1] // high, images.shape[2] // wide
  result = np.zeros((len(images), rows * columns, side * side), int)
  for b in range(len(images)):
    for i in range(rows):
      for j in range(columns):
        patch = images[b, i * high : (i + 1) * high, j * wide : (j + 1) * wide]
        for k in range(side):
          for m in range(side):
            cell = patch[
              k * high // side : (k + 1) * high // side,
              m * wide // side : (m + 1) * wide // side,
            ].astype(float)
            number = 0
            for level in np.floor(cell.mean(axis=(0, 1)) * 8 / 256):
              number = 8 * number + int(level)
            result[b, i * columns + j, k * side + m] = number
  return result


@pytest.mark.parametrize('side, channels', [(1, 3), (4, 1)])
def test_classes_equal_those_of_a_naive_reference(side, channels):
  # The target drops pixels beyond the last patch of 17 x 33, as the model does.
  images = _images(3, (17, 33), channels)
  target = targets.Target(NAMES[side], (8, 16), channels)
  pixels = targets.patches(images, (8, 16))
  assert pixels.shape == (3, 4, 8, 16, channels)
  np.testing.assert_array_equal(
    target.classes(pixels), _naive_classes(images, side, 8, 16)
  )
  assert target.outputs == side**2 * 8**channels


@pytest.mark.parametrize('side', [1, 4])
def test_the_loss_of_colours_is_the_cross_entropy(side):
  target = targets.Target(NAMES[side], (4, 4), 2)
  pixels = targets.patches(_images(2, (8, 8), 2), (4, 4))
  predictions = (
    np.random.default_rng(1)
    .normal(size=(2, 4, target.outputs))
    .astype(np.float32)
  )
  logits = predictions.reshape(2, 4, side**2, 64)
  log_sum = np.log(np.exp(logits).sum(axis=-1))
  classes = np.asarray(target.classes(pixels))
  picked = np.take_along_axis(logits, classes[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(
    target.loss(predictions, pixels),
    (log_sum - picked).mean(axis=-1),
    rtol=1e-5,
  )
  np.testing.assert_array_equal(
    target.predicted_classes(predictions), logits.argmax(axis=-1)
  )


def test_the_loss_of_pixels_is_the_squared_distance():
  target = targets.Target('pixels', (2, 2), 3)
  pixels = targets.patches(_images(2, (4, 4), 3), (2, 2))
  assert target.outputs == 12
  wanted = (np.asarray(pixels, np.float32) / 127.5 - 1).reshape(2, 4, 12)
  noise = np.random.default_rng(1).normal(size=wanted.shape)
  np.testing.assert_allclose(
    target.loss(wanted + noise.astype(np.float32), pixels),
    (noise**2).mean(axis=-1),
    rtol=1e-5,
  )
