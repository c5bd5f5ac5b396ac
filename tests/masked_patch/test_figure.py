"""Guards the pictures: seen, predicted and unchanged pixels."""

import cv2
import numpy as np
import pytest

from vit_jax.masked_patch import figure, targets


def test_panels_show_the_input_and_the_prediction():
  # A row of four patches of 2x2 px, with the colours 10, 20, 30 and 40.
  images = np.repeat(np.uint8([10, 20, 30, 40]), 2)[None, None, :, None]
  images = np.repeat(images, 2, axis=1)
  predicted = np.full((1, 4, 2, 2, 1), 99, np.uint8)
  seen, prediction = figure.pictures(
    images,
    np.array([[-1, 1, 0, 3]]),
    np.array([[True, False, True, True]]),
    predicted,
    (2, 2),
  )
  # The sources are: masked, own, another, own.
  row = [128, 128, 20, 20, 10, 10, 40, 40]
  np.testing.assert_array_equal(seen[0, :, :, 0], [row, row])
  row = [99, 99, 20, 20, 99, 99, 99, 99]
  np.testing.assert_array_equal(prediction[0, :, :, 0], [row, row])


def test_patches_keep_their_positions():
  images = np.random.default_rng(0).integers(0, 256, (2, 6, 8, 3), np.uint8)
  own = np.tile(np.arange(6), (2, 1))
  pixels = np.asarray(targets.patches(images, (2, 4)))
  seen, prediction = figure.pictures(
    images, own, np.ones((2, 6), bool), pixels, (2, 4)
  )
  np.testing.assert_array_equal(seen, images)
  np.testing.assert_array_equal(prediction, images)


def test_predicted_classes_are_drawn_in_their_colours():
  target = targets.Colours((4, 8), 1, side=4)
  logits = np.zeros((1, 1, 16, 8), np.float32)
  logits[0, 0, np.arange(16), np.arange(16) % 8] = 1
  pixels = target.pixels(logits.reshape(1, 1, -1))[0, 0, :, :, 0]
  row = np.repeat([16, 48, 80, 112], 2), np.repeat([144, 176, 208, 240], 2)
  np.testing.assert_array_equal(pixels, [row[0], row[1], row[0], row[1]])
  one = targets.Colours((3, 5), 3, side=1).pixels(np.eye(512)[None, None, 64])
  assert one.shape == (1, 1, 3, 5, 3)
  assert (np.asarray(one) == (48, 16, 16)).all()
  regression = targets.Pixels((1, 2), 1)
  np.testing.assert_array_equal(
    regression.pixels(np.float32([[[-1.2, 0.0]]]))[0, 0, 0, :, 0], [0, 128]
  )


@pytest.mark.parametrize('channels', [1, 2, 3])
def test_a_picture_is_written(channels, tmp_path):
  images = np.zeros((2, 4, 4, channels), np.uint8)
  path = tmp_path / 'figure.png'
  figure.save(images, images + 255, images, path)
  height, width, _ = cv2.imread(str(path)).shape
  assert (height, width) == (600, 900)


def test_runs_with_another_objective_are_refused(tmp_path):
  with pytest.raises(
    ValueError, match=r"holds no run with loss.name='masked_pa"
  ):
    figure.save_run(tmp_path, tmp_path / 'a.png', 2)
