"""Guards the pictures: seen, predicted and unchanged pixels."""

import numpy as np
import pytest

from vit_jax.inspection import masked_patches


def test_panels_show_the_input_and_the_prediction():
  # A row of four patches of 2x2 px, with the colours 10, 20, 30 and 40.
  images = np.repeat(np.uint8([10, 20, 30, 40]), 2)[None, None, :, None]
  images = np.repeat(images, 2, axis=1)
  predicted = np.full((1, 4, 2, 2, 1), 99, np.uint8)
  seen, prediction = masked_patches.pictures(
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
  figure = masked_patches.draw(seen, prediction, images)
  assert len(figure.axes) == 3


def test_runs_with_another_objective_are_refused(tmp_path):
  with pytest.raises(ValueError, match='masked_patch'):
    masked_patches.predict_pictures(tmp_path, 2)
