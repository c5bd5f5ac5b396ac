"""Guards: hashes of changed pictures stay near, those of others do not."""

import cv2
import numpy as np
import pytest

from tests.dedup import pictures
from vit_jax.dedup import hashing

# The views that show a part of an image, and those around it.
CROPS, PARTS = range(1, 10), range(10, 19)


def _distance(one, other):
  return np.unpackbits(one ^ other, axis=-1).sum(-1)


def test_changes_that_keep_the_frame_hardly_change_the_hash():
  image = pictures.picture(0)
  whole = hashing.of_whole(pictures.grey(image))
  for changed in (
    cv2.resize(image, (75, 60), interpolation=cv2.INTER_AREA),
    cv2.resize(image, (225, 180)),
    np.clip(0.6 * image + 51, 0, 255).astype(np.uint8),
    cv2.imdecode(np.frombuffer(pictures.jpeg(image, 20), np.uint8), 4)[
      ..., ::-1
    ],
  ):
    near = hashing.of_whole(pictures.grey(np.ascontiguousarray(changed)))
    assert _distance(near, whole) <= 12
  other = hashing.of_views(pictures.grey(pictures.picture(99)), flips=True)
  assert _distance(other, whole).min() > 32


@pytest.mark.parametrize('top, left', [(0, 0), (12, 15), (3, 10)])
def test_crops_are_found_in_both_directions(top, left):
  image = pictures.grey(pictures.picture(1))
  crop = image[top : top + 108, left : left + 135]
  for one, other, kind in ((image, crop, CROPS), (crop, image, PARTS)):
    views = hashing.of_views(one, flips=False)
    distances = _distance(views, hashing.of_whole(other))
    assert distances.min() <= 32
    assert int(distances.argmin()) in kind


@pytest.mark.parametrize('side, decoded', [(100, 100), (128, 64), (600, 75)])
def test_jpegs_are_decoded_smaller_but_not_too_small(side, decoded):
  image = pictures.picture(0, side, side + 200)
  found = hashing.decode(pictures.jpeg(image), upright=False)
  assert (found.shape[0], found.dtype) == (decoded, np.uint8)
