"""Guards `digits`: a fixed, balanced order, disjoint splits, and its errors."""

import importlib.util
import pickle
import types

import numpy as np
import pytest
from sklearn import datasets

from vit_jax import data
from vit_jax.data import digits


def _labels(view):
  return [view[i].label for i in range(len(view))]


def test_info():
  info = data.open_source('digits').info
  assert info.splits == {'train': 1437, 'test': 360}
  assert info.class_names == tuple('0123456789')
  assert not info.multi_label


def test_labels_are_positions_in_the_given_string():
  source = data.open_source('digits:81')
  scans = datasets.load_digits()
  assert source.info.class_names == ('8', '1')
  assert sum(source.info.splits.values()) == 174 + 182
  view = data.View(source, 'train+test')
  assert _labels(view)[:4] == [0, 1, 0, 1]
  found = {0: set(), 1: set()}
  for i in range(len(view)):
    found[view[i].label].add(view[i].image.tobytes())
  for label, digit in enumerate((8, 1)):
    scaled = np.floor(scans.images[scans.target == digit] * 255 / 16 + 0.5)
    assert found[label] == {scan.astype(np.uint8).tobytes() for scan in scaled}


def test_images_use_the_full_range():
  view = data.View(data.open_source('digits:01'), 'train')
  image = view[0].image
  assert image.shape == (8, 8, 1)
  assert image.dtype == np.uint8
  values = set(np.unique([view[i].image for i in range(len(view))]).tolist())
  # The scans hold 0..16; times 255 / 16 = 15.9375, rounded.
  assert values == {
    *(0, 16, 32, 48, 64, 80, 96, 112, 128),
    *(143, 159, 175, 191, 207, 223, 239, 255),
  }


def test_prefixes_are_balanced():
  source = data.open_source('digits:13589')
  labels = _labels(data.View(source, 'train[:250]'))
  assert labels[:7] == [0, 1, 2, 3, 4, 0, 1]
  assert np.bincount(labels).tolist() == [50] * 5
  # The rarest of these digits has 174 scans.
  labels = _labels(data.View(source, 'train+test'))
  assert np.bincount(labels[: 174 * 5]).tolist() == [174] * 5
  assert np.bincount(labels).tolist() == [182, 183, 182, 174, 180]


def test_without_the_csv_file_scikit_learn_loads_the_digits(
  monkeypatch, tmp_path
):
  images, targets = digits._scans()
  elsewhere = types.SimpleNamespace(submodule_search_locations=[tmp_path])
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: elsewhere)
  others, other_targets = digits._scans()
  np.testing.assert_array_equal(images, others)
  np.testing.assert_array_equal(targets, other_targets)
  assert len(images) == 1797


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


def test_splits_are_disjoint():
  source = data.open_source('digits')
  train, test = data.View(source, 'train'), data.View(source, 'test')
  seen = {train[i].image.tobytes() for i in range(len(train))}
  assert not any(test[i].image.tobytes() in seen for i in range(len(test)))
  assert test[3].name == 'test/3'


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


def test_pickles():
  source = data.open_source('digits:13589')
  copy = pickle.loads(pickle.dumps(source))
  assert copy.info == source.info
  a, b = source.read('test', 17), copy.read('test', 17)
  np.testing.assert_array_equal(a.image, b.image)
  assert a.label == b.label
