"""Guards: hashes of changed pictures stay near, those of others do not."""

import cv2
import numpy as np
import pytest

from tests.dedup import pictures
from vit_jax.dedup import hashing


def _distance(one, other):
  return np.unpackbits(one ^ other, axis=-1).sum(-1)


def test_the_views():
  names = [view.name for view in hashing.VIEWS]
  assert names[:3] == ['whole', 'crop(0, 0)', 'crop(0, 0.05)']
  assert names[9:11] == ['crop(0.1, 0.1)', 'part(0, 0)']
  assert names[-1] == 'part(0.1, 0.1)'
  assert len(set(names)) == 19


def test_a_hash_is_the_signs_of_low_frequencies():
  """A picture of two cosines has the signs of their factors."""
  places = (np.arange(32) + 0.5) / 32
  down, right = np.cos(np.pi * places), np.cos(2 * np.pi * places)
  image = np.round(128 + 60 * down[:, None] - 40 * right[None, :])
  found = np.unpackbits(hashing.of_whole(image.astype(np.uint8)))
  order = hashing._ORDER
  assert order[:5] == [(0, 1), (1, 0), (0, 2), (1, 1), (2, 0)]
  assert found[order.index((1, 0))] == 1
  assert found[order.index((0, 2))] == 0
  assert len(found) == 128


@pytest.mark.parametrize('seed', range(3))
def test_changes_that_keep_the_frame_hardly_change_the_hash(seed):
  image = pictures.picture(seed)
  whole = hashing.of_whole(pictures.grey(image))
  for changed in (
    cv2.resize(image, (75, 60), interpolation=cv2.INTER_AREA),
    cv2.resize(image, (225, 180)),
    np.clip(0.6 * image + 51, 0, 255).astype(np.uint8),
    cv2.imdecode(np.frombuffer(pictures.jpeg(image, 20), np.uint8), 1)[
      ..., ::-1
    ],
  ):
    assert (
      _distance(hashing.of_whole(pictures.grey(changed.copy())), whole) <= 12
    )
  other = hashing.of_views(pictures.grey(pictures.picture(99)), flips=True)
  assert _distance(other, whole).min() > 32


@pytest.mark.parametrize('top, left', [(0, 0), (12, 15), (3, 10), (7, 2)])
def test_crops_are_found_in_both_directions(top, left):
  image = pictures.grey(pictures.picture(1))
  crop = image[top : top + 108, left : left + 135]
  of_image = _distance(
    hashing.of_views(image, flips=False), hashing.of_whole(crop)
  )
  assert of_image.min() <= 32
  assert hashing.VIEWS[of_image.argmin()].scale < 1
  of_crop = _distance(
    hashing.of_views(crop, flips=False), hashing.of_whole(image)
  )
  assert of_crop.min() <= 32
  assert hashing.VIEWS[of_crop.argmin()].scale > 1


@pytest.mark.parametrize(
  'side, decoded', [(100, 100), (128, 64), (255, 128), (600, 75)]
)
def test_jpegs_are_decoded_smaller_but_not_too_small(side, decoded):
  image = pictures.picture(0, side, side + 200)
  found = hashing.decode(pictures.jpeg(image), upright=False)
  assert found.shape[0] == decoded
  assert found.dtype == np.uint8
  array = hashing.decode(image, upright=False)
  assert array.shape == image.shape[:2]
