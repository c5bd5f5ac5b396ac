"""Guards orders of records: permutations that stay fixed and look random."""

import collections

import numpy as np
import pytest

from vit_jax.data import permutation

SIZES = [*range(1, 201), 255, 256, 257, 1797, 4096, 65_537]


def _order(size, seed=0):
  return permutation.permute(np.arange(size), size, seed)


@pytest.mark.parametrize('seed', [0, 1, 2**32 - 1])
def test_the_order_contains_every_record_once(seed):
  for size in SIZES:
    order = _order(size, seed)
    np.testing.assert_array_equal(np.sort(order), np.arange(size))
    np.testing.assert_array_equal(
      permutation.invert(order, size, seed), np.arange(size)
    )


def test_integers_and_arrays_agree():
  for size in (1, 2, 3, 100, 1000):
    expected = _order(size, 7).tolist()
    found = [permutation.permute(i, size, 7) for i in range(size)]
    assert found == expected
    assert all(type(index) is int for index in found)
    assert [permutation.invert(i, size, 7) for i in found] == list(range(size))
  assert permutation.permute(np.int64(3), 1000, 7) == expected[3]
  assert _order(9).dtype == np.int64


def test_literal_orders():
  # Reported results depend on these orders, which must never change.
  assert _order(10).tolist() == [2, 7, 0, 9, 1, 6, 8, 4, 3, 5]
  assert _order(10, 1).tolist() == [9, 5, 8, 0, 2, 3, 7, 6, 1, 4]
  found = [permutation.permute(i, 303_000_000, 0) for i in range(4)]
  assert found == [3_390_490, 256_420_745, 109_790_059, 162_269_904]
  # This size is above 2**32.
  index = permutation.permute(5, 10**12, 3)
  assert index == 595_678_579_450
  assert permutation.invert(index, 10**12, 3) == 5


def test_epochs_and_runs_have_different_seeds():
  seeds = {
    permutation.epoch_seed(seed, epoch)
    for seed in range(30)
    for epoch in range(30)
  }
  assert len(seeds) == 900
  assert all(0 <= seed < 2**64 for seed in seeds)
  # Resumed runs depend on these seeds, which must never change.
  assert permutation.epoch_seed(0, 0) == 5197578548964807871
  assert permutation.epoch_seed(7, 299) == 9935891521076201860


@pytest.mark.parametrize('size', [2**31, 2**40 + 1, 2**63 - 1])
def test_sizes_beyond_32_bits(size):
  seed = permutation.epoch_seed(3, 1)
  places = np.array([0, 1, size // 2, size - 1])
  found = permutation.permute(places, size, seed)
  assert ((found >= 0) & (found < size)).all()
  np.testing.assert_array_equal(permutation.invert(found, size, seed), places)
  assert permutation.permute(size - 1, size, seed) == found[-1]


def test_seeds_give_unrelated_orders():
  one, other = _order(1000, 0), _order(1000, 1)
  # Two random orders have one record at the same place on average.
  assert (one == other).sum() < 8
  # Two random halves share half of their records: 250 +- 8.
  assert 200 < len(np.intersect1d(one[:500], other[:500])) < 300


@pytest.mark.parametrize('size', [1000, 1024, 1025, 100_000])
def test_prefixes_are_spread_evenly(size):
  """Tests chi-squared over 20 equal ranges: 19 +- 6 for a random subset."""
  values = []
  for seed in range(20):
    prefix = _order(size, seed)[: size // 10]
    counts = np.histogram(prefix, bins=20, range=(0, size))[0]
    mean = len(prefix) / 20
    values.append(((counts - mean) ** 2 / mean).sum())
  # Draws are without replacement: 0.9 * 19 = 17.1. The mean of 20 is +- 1.3.
  assert 12 < np.mean(values) < 23


def test_neighbours_are_uncorrelated():
  order = _order(100_000).astype(float)
  for lag in (1, 2, 64):
    assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 0.02
  assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02


def test_small_data_reaches_all_orders():
  counts = collections.Counter(
    tuple(_order(4, seed).tolist()) for seed in range(2400)
  )
  # Each of the 24 orders occurs 100 +- 10 times.
  assert len(counts) == 24
  assert min(counts.values()) > 50
  assert max(counts.values()) < 160
