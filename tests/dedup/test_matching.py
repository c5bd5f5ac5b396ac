"""Guards: pixels decide, whatever the hashes say."""

import numpy as np
import pytest

from tests.dedup import pictures
from vit_jax.dedup import hashing, matching

WHOLE, MIRRORED = 0, len(hashing.VIEWS)


def _grey(seed):
  return pictures.grey(pictures.picture(seed))


def test_equal_and_other_pictures():
  assert matching.correlation(_grey(0), _grey(0), [WHOLE])[0] > 0.99
  for seed in range(1, 6):
    assert matching.correlation(_grey(0), _grey(seed), [WHOLE])[0] < 0.5


@pytest.mark.parametrize('top, left, place', [(0, 0, 0), (9, 4, 7)])
def test_crops_are_aligned(top, left, place):
  whole = _grey(3)
  crop = whole[top : top + 108, left : left + 135]
  # Nine views are crops, and the last nine have this image as a crop.
  for one, other, view in ((crop, whole, 1 + place), (whole, crop, 10 + place)):
    found, used = matching.correlation(one, other, [view])
    assert found > 0.9
    assert used == view


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
  noise = rng.normal(0, 0.7, (2, 100, 100))
  skies = np.clip(ramp + noise, 0, 255).astype(np.uint8)
  assert not any(map(hashing.is_flat, skies))
  assert matching.correlation(*skies, [WHOLE])[0] == 0
