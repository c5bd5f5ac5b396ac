"""Guards `digits`: a fixed, balanced order, disjoint splits, and its errors."""

import numpy as np
import pytest
from sklearn import datasets

from vit_jax import data
from vit_jax.data.sources import digits


def _labels(view):
  return [view[i].label for i in range(len(view))]


def test_info():
  info = data.open_source('digits').info
  assert info.splits == {'train': 1437, 'test': 360}
  assert info.class_names == tuple('0123456789')
  assert not info.multi_label


def test_prefixes_are_balanced():
  source = data.open_source('digits:13589')
  labels = _labels(data.View(source, 'train[:250]'))
  assert labels[:7] == [0, 1, 2, 3, 4, 0, 1]
  assert np.bincount(labels).tolist() == [50] * 5
  # The rarest of these digits has 174 scans.
  labels = _labels(data.View(source, 'train+test'))
  assert np.bincount(labels[: 174 * 5]).tolist() == [174] * 5
  assert np.bincount(labels).tolist() == [182, 183, 182, 174, 180]


def test_order_is_shuffled_and_fixed_for_any_subset_of_digits():
  scans = datasets.load_digits()
  ones = scans.images[scans.target == 1]

  def first_ones(spec, label):
    view = data.View(data.open_source(spec), 'train')
    images = [r.image for r in (view[i] for i in range(60)) if r.label == label]
    flat = np.rint(ones * 255 / 16).astype(np.uint8)[..., None]
    return [int(np.all(flat == x, axis=(1, 2, 3)).argmax()) for x in images[:5]]

  assert first_ones('digits', 1) == [168, 21, 46, 93, 45]
  assert first_ones('digits:17', 0) == [168, 21, 46, 93, 45]


@pytest.mark.parametrize(
  'kept, reason',
  [
    ('12x', r"unknown: \['x'\]"),
    ('1231', r"repeated: \['1'\]"),
    ('7', 'two or more'),
    ('', 'two or more'),
  ],
)
def test_errors(kept, reason):
  with pytest.raises(ValueError, match=reason):
    digits.Digits(kept)
