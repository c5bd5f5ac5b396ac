"""Guards: the benchmark plants what it says, and counts right and false."""

import numpy as np

from benchmarks.measure import dedup
from tests.dedup import pictures


def test_changes():
  image = pictures.picture(0, 100, 200)
  changed = {
    name: change(image, np.random.default_rng(0))
    for name, change in dedup.CHANGES.items()
  }
  sides = {name: one.shape[:2] for name, one in changed.items()}
  assert sides.pop('resized to 50%') == (50, 100)
  assert sides.pop('resized to 25%') == (25, 50)
  assert sides.pop('resized to 150%') == (150, 300)
  assert sides.pop('cropped by 10%') == (90, 180)
  assert sides.pop('crop, 50%, JPEG 50') == (45, 90)
  assert sides.pop('mirrored, crop, JPEG 50') == (90, 180)
  assert set(sides.values()) == {(100, 200)}
  np.testing.assert_array_equal(changed['mirrored'], image[:, ::-1])
  assert np.ptp(changed['grey'], axis=2).max() == 0
  assert abs(int(changed['brightness'].mean()) - int(image.mean())) > 25
  noise = {
    name: np.abs(changed[name].astype(int) - image).mean()
    for name in ('JPEG 90', 'JPEG 50', 'JPEG 20')
  }
  assert 0 < noise['JPEG 90'] < noise['JPEG 50'] < noise['JPEG 20']


def test_planted_pairs_are_found_in_both_directions():
  originals = [pictures.jpeg(pictures.picture(seed)) for seed in range(5)]
  found = dedup.quality(originals, dedup.CHANGES['JPEG 50'], 0, flips=False)
  for direction in found:
    limits = dict(correlation=0.8, distance=32)
    assert dedup.count(direction, set(), **limits) == (5, 0)
  assert not len(dedup.pairs(originals, [])['index'])
