"""Guards selections, by comparison with explicit lists of records."""

import numpy as np
import pytest

from vit_jax.data import permutation, selection, splits

SIZES = {'train': 97, 'test': 10}


def _naive(parts):
  """Returns the records in order, as (split, index)."""
  records = []
  for part in parts:
    if isinstance(part, selection.Range):
      records += [(part.split, i) for i in range(part.start, part.stop)]
      continue
    inner = _naive(part.inner.parts)
    order = permutation.permute(np.arange(len(inner)), len(inner), part.seed)
    records += [inner[i] for i in order[part.start : part.stop]]
  return records


def _random_expression(rng, depth=2):
  """Returns a sum of up to two terms, each sliced or whole."""

  def cut():
    low, high = sorted(rng.choice(101, 2, replace=False))
    # At least 20%, so that slices of 10 records are not empty.
    high = min(100, max(high, low + 20))
    low = min(low, high - 20)
    return rng.choice(['', f'[{low}%:{high}%]', f'[:{high}%]', f'[{low}%:]'])

  terms = []
  for _ in range(rng.integers(1, 3)):
    if depth and rng.random() < 0.6:
      inner = _random_expression(rng, depth - 1)
      seed = rng.choice(['', ', seed=1'])
      terms.append(f'shuffled({inner}{seed}){cut()}')
    else:
      terms.append(rng.choice(['train', 'train', 'test']) + cut())
  return '+'.join(terms)


def _pairs(count=80):
  """Yields pairs of selections, and whether they are slices of one order."""
  rng = np.random.default_rng(0)
  while count:
    one, other = _random_expression(rng), _random_expression(rng)
    sliced = rng.random() < 0.3
    if sliced:
      one, other = f'shuffled({one})[:60%]', f'shuffled({one})[60%:]'
    try:
      yield splits.resolve(one, SIZES), splits.resolve(other, SIZES), sliced
    except ValueError:  # A slice of few records selects nothing.
      continue
    count -= 1


def test_places_equal_those_of_an_explicit_list():
  for one, _, _ in _pairs():
    expected = _naive(one.parts)
    assert len(one) == len(expected)
    assert [one.place(i) for i in range(len(one))] == expected
    indices = np.arange(len(one))[::-2]
    found = {}
    for split, there, rows in one.places(indices):
      found |= {r: (split, i) for r, i in zip(rows, there, strict=True)}
    assert [found[r] for r in range(len(indices))] == expected[::-2]


def test_shared_counts_are_never_too_small():
  exact = disjoint = 0
  for one, other, sliced in _pairs():
    first, second = _naive(one.parts), _naive(other.parts)
    expected = len(set(first) & set(second))
    found = one.shared(other)
    assert expected <= found <= min(len(one), len(other))
    assert other.shared(one) == found
    exact += found == expected
    disjoint += sliced and found == 0
  assert exact > 20
  assert disjoint > 10


@pytest.mark.parametrize(
  'split, whole',
  [
    ('train', 97),
    ('shuffled(train[:50])[:10%]+test[:3]', 53),
    ('shuffled(shuffled(train)[:50])[:10%]', 97),
  ],
)
def test_whole_is_the_size_a_random_part_is_taken_from(split, whole):
  found = splits.resolve(split, SIZES)
  assert found.whole == whole
  assert found.shuffled is ('shuffled' in split)
