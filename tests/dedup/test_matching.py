"""Guards: pixels decide, whatever the hashes say."""

import cv2
import numpy as np
import pytest

from tests.dedup import pictures
from vit_jax.dedup import hashing, matching

WHOLE = 0
MIRRORED = len(hashing.VIEWS)


def _grey(seed):
  return pictures.grey(pictures.picture(seed))


def _view(name):
  return [view.name for view in hashing.VIEWS].index(name)


def test_equal_and_other_pictures():
  assert matching.correlation(_grey(0), _grey(0), [WHOLE])[0] > 0.99
  for seed in range(1, 6):
    assert matching.correlation(_grey(0), _grey(seed), [WHOLE])[0] < 0.5


@pytest.mark.parametrize(
  'top, left, view',
  [
    (0, 0, 'crop(0, 0)'),
    (12, 15, 'crop(0.1, 0.1)'),
    (9, 4, 'crop(0.1, 0.05)'),
  ],
)
def test_crops_are_aligned(top, left, view):
  whole = _grey(3)
  crop = whole[top : top + 108, left : left + 135]
  found, used = matching.correlation(crop, whole, [_view(view)])
  assert found > 0.9
  assert used == _view(view)
  part = view.replace('crop', 'part')
  assert matching.correlation(whole, crop, [_view(part)])[0] > 0.9


def test_a_view_starts_where_it_was_cut():
  """The first of 10 pixels has its centre at 0.5; 0.9 of it is 0.45."""
  start = matching._start(hashing.Box(0.0, 0.05, 0.9), 10)
  np.testing.assert_allclose(
    start, [[0.9, 0, 0.45], [0, 0.9, -0.05]], atol=1e-6
  )


def test_the_alignment_is_needed():
  whole = _grey(3)
  start = matching._start(hashing.VIEWS[_view('crop(0, 0)')], 64)
  one, other = (hashing.square(i, 64) for i in (whole[4:112, 5:140], whole))
  better = matching._align(one, other, start)
  assert matching._score(one, other, start) < 0.8
  assert matching._score(one, other, better) > 0.9


def test_the_best_view_counts_and_says_whether_it_is_mirrored():
  image = _grey(4)
  mirrored = np.ascontiguousarray(image[:, ::-1])
  assert matching.correlation(image, mirrored, [WHOLE])[0] < 0.5
  found, view = matching.correlation(image, mirrored, [WHOLE, MIRRORED])
  assert found > 0.99
  assert view == MIRRORED


def test_pictures_without_details_match_nothing():
  """Two skies with the same gradient, and noise."""
  rng = np.random.default_rng(0)
  ramp = np.linspace(60, 200, 100)[:, None] + np.zeros((1, 100))
  skies = [
    np.clip(ramp + rng.normal(0, 0.7, ramp.shape), 0, 255).astype(np.uint8)
    for _ in range(2)
  ]
  assert not any(map(hashing.is_flat, skies))
  assert matching.correlation(*skies, [WHOLE])[0] == 0


def test_small_pictures_need_more():
  large = _grey(5)
  found = [
    matching.correlation(small, small, [WHOLE])[0]
    for small in (
      cv2.resize(large, (side, side), interpolation=cv2.INTER_AREA)
      for side in (64, 48, 32)
    )
  ]
  assert found == pytest.approx([1, 0.96, 0.92], abs=0.005)
