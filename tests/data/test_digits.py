"""Guards `digits`: a fixed, balanced order, disjoint splits, and its errors."""

import numpy as np
import pytest
from sklearn import datasets

from vit_jax import data
from vit_jax.data.sources import digits


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


@pytest.mark.parametrize('kept', ['12x', '1231', '7', ''])
def test_errors(kept):
  with pytest.raises(ValueError, match='two or more different digits'):
    digits.Digits(kept)
