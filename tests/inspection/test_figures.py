"""Guards: each figure shows the given numbers at the right places."""

import numpy as np

from vit_jax.inspection import figures


def _images(count, channels=3):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, 16, 32, channels), np.uint8)


def test_overlay_is_the_image_where_most_is_attended_to_and_black_elsewhere():
  image = np.full((64, 64, 1), 255, np.uint8)
  attended = np.zeros((8, 8))
  attended[2, 5] = 0.01
  picture = figures.overlay(image, attended)
  assert picture.shape == (64, 64, 3)
  assert (picture.min(), picture.max()) == (0, 1)
  # That patch of 8 px has its centre at row 20 and column 44.
  row, column = np.unravel_index(picture[..., 0].argmax(), (64, 64))
  assert abs(row - 19.5) <= 1
  assert abs(column - 43.5) <= 1
  # The patch is blurred with a Gaussian of one patch: it has about half of its
  # maximum a patch away.
  assert 0.4 < picture[19, 43 + 9, 0] < 0.75
  assert picture[60, 4].max() < 0.01
  np.testing.assert_array_equal(
    picture, figures.overlay(image, 1000 * attended)
  )


def test_rollout_has_each_image_beside_its_overlay():
  images, maps = _images(6), np.random.default_rng(1).random((6, 2, 4))
  axes = figures.rollout(images, maps, numbered=True).axes
  for i, (left, right) in enumerate(zip(axes[::2], axes[1::2], strict=True)):
    np.testing.assert_allclose(
      left.images[0].get_array(), images[i] / 255, atol=1e-6
    )
    np.testing.assert_allclose(
      right.images[0].get_array(), figures.overlay(images[i], maps[i])
    )
    assert [text.get_text() for text in left.texts] == [str(i + 1)]
  # The pictures are ordered row by row from the top left: three rows of two.
  corners = [axis.get_position().get_points()[0] for axis in axes]
  places = [(-round(y, 6), x) for x, y in corners]
  assert places == sorted(places)
  assert len({y for y, _ in places}) == 3


def test_pictures_are_beside_their_image():
  pictures = np.random.default_rng(1).random((2, 3, 2, 4))
  axes = figures.beside(_images(2), pictures, ['a', 'b', 'c']).axes
  assert [each.get_title() for each in axes[:4]] == ['Input', *'abc']
  for group, expected in zip((axes[1:4], axes[5:]), pictures, strict=True):
    found = [each.images[0].get_array() for each in group]
    np.testing.assert_array_equal(found, expected)


def test_position_similarity_has_a_map_for_each_patch_at_its_place():
  similarity = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2, 3))
  axes = figures.position_similarity(similarity).axes[0]
  picture = axes.images[0]
  assert picture.get_clim() == (-1, 1)
  canvas = np.ma.filled(picture.get_array(), np.nan)
  assert canvas.shape == (2 * 2 + 1, 3 * 3 + 2)
  np.testing.assert_array_equal(canvas[3:5, 4:7], similarity[1, 1])
  np.testing.assert_array_equal(canvas[0:2, 8:11], similarity[0, 2])
  assert np.isnan(canvas[2]).all()
  assert [label.get_text() for label in axes.get_xticklabels()] == list('123')
