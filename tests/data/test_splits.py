"""Guards split expressions and orders: records, overlap, and errors."""

import numpy as np
import pytest

from vit_jax.data import permutation, selection, splits
from vit_jax.data.selection import Range, Selection, Shuffled

# ---- Orders ------------------------------------------------------------------


def _order(size, seed=0):
  return permutation.permute(np.arange(size), size, seed)


@pytest.mark.parametrize('seed', [0, 1, 2**32 - 1])
def test_the_order_contains_every_record_once(seed):
  for size in (*range(1, 65), 255, 256, 257, 1797, 65_537):
    order = _order(size, seed)
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_integers_and_arrays_agree():
  for size in (1, 2, 3, 100, 1000):
    expected = _order(size, 7).tolist()
    found = [permutation.permute(i, size, 7) for i in range(size)]
    assert found == expected
    assert all(type(index) is int for index in found)
  assert permutation.permute(np.int64(3), 1000, 7) == expected[3]
  assert _order(9).dtype == np.int64


def test_literal_orders():
  # Reported results depend on these orders, which must never change.
  assert _order(10).tolist() == [2, 7, 0, 9, 1, 6, 8, 4, 3, 5]
  assert _order(10, 1).tolist() == [9, 5, 8, 0, 2, 3, 7, 6, 1, 4]
  found = [permutation.permute(i, 303_000_000, 0) for i in range(4)]
  assert found == [3_390_490, 256_420_745, 109_790_059, 162_269_904]
  # This size is above 2**32.
  assert permutation.permute(5, 10**12, 3) == 595_678_579_450


# ---- Expressions -------------------------------------------------------------


SIZES = {'train': 101, 'test': 10}


@pytest.mark.parametrize(
  'split, expected',
  [
    ('train', [('train', 0, 101)]),
    ('train[:50]', [('train', 0, 50)]),
    ('train[-5:]', [('train', 96, 101)]),
    # Percentages round to the nearest example. 33 % of 101 is 33.33, 66 % is
    # 66.66, and 98 % is 98.98.
    ('train[33%:66%]', [('train', 33, 67)]),
    ('train[:98%]', [('train', 0, 99)]),
    ('train[98%:]+test', [('train', 99, 101), ('test', 0, 10)]),
    ('test[2:4] + train[:1]', [('test', 2, 4), ('train', 0, 1)]),
    ('test+test', [('test', 0, 10), ('test', 0, 10)]),
    ('all', [('train', 0, 101), ('test', 0, 10)]),
  ],
)
def test_ranges(split, expected):
  assert list(splits.resolve(split, SIZES).parts) == expected


@pytest.mark.parametrize(
  'split, reason',
  [
    ('trian', "Unknown split 'trian'"),
    ('train[-102:]', 'incompatible with 101 examples'),
    ('train[:101%]', r'should be in \[-100, 100\]'),
    ('train[50:20]', r'train\[50:20\] selects nothing'),
    ('train[:1shard]', "'shard' unit is not supported"),
    ('all[:5]', "'all' does not support slice"),
    ('train[', 'Unrecognized split format'),
    ('shuffled(train', 'the parentheses of .* do not match; the forms are NA'),
    ('shufled(train)', "cannot parse 'shufled.train.'; the forms are NA"),
    ('shuffled(trian)', "Unknown split 'trian'"),
    ('shuffled(train, seed=4294967296)', r'seed=4294967296 must be below 2'),
    ('shuffled(train[:50])[:51]', 'incompatible with 50 examples'),
  ],
)
def test_errors_name_the_expression_and_list_the_splits(split, reason):
  with pytest.raises(ValueError, match=reason) as error:
    splits.resolve(split, SIZES)
  assert f'{split!r} over the splits train (101), test (10)' in str(error.value)


def _shuffled(inner, start, stop, seed=0):
  return Shuffled(Selection(inner), seed, start, stop)


TRAIN = (Range('train', 0, 101),)


@pytest.mark.parametrize(
  'split, expected',
  [
    ('shuffled(train)', [_shuffled(TRAIN, 0, 101)]),
    # Rounds like a plain slice: 33 % of 101 is 33.33, 66 % is 66.66.
    ('shuffled(train)[33%:66%]', [_shuffled(TRAIN, 33, 67)]),
    ('shuffled(train)[:0.9%]', [_shuffled(TRAIN, 0, 1)]),
    ('shuffled(train)[-5:]', [_shuffled(TRAIN, 96, 101)]),
    ('shuffled( train , seed = 12 )[:3]', [_shuffled(TRAIN, 0, 3, 12)]),
    (
      'test+shuffled(train[:98%]+test, seed=1)[:50%]+train[:1]',
      [
        Range('test', 0, 10),
        _shuffled((Range('train', 0, 99), Range('test', 0, 10)), 0, 54, 1),
        Range('train', 0, 1),
      ],
    ),
    (
      'shuffled(shuffled(train)[98%:], seed=1)[:1]',
      [_shuffled((_shuffled(TRAIN, 99, 101),), 0, 1, 1)],
    ),
    ('shuffled(all)', [_shuffled((*TRAIN, Range('test', 0, 10)), 0, 111)]),
  ],
)
def test_shuffled_expressions(split, expected):
  assert list(splits.resolve(split, SIZES).parts) == expected


@pytest.mark.parametrize(
  'one, other, expected',
  [
    ('train[:90%]', 'train[90%:]', False),
    ('shuffled(train)[:90%]', 'shuffled(train)[90%:]', False),
    ('shuffled(train)[:1%]', 'shuffled(train, seed=1)[99%:]', True),
    ('shuffled(train[:98%])[:10%]', 'shuffled(train[98%:], seed=1)', False),
    # The order holds each record twice.
    ('shuffled(train+train)[:9%]', 'shuffled(train+train)[9%:]', True),
    ('train[:200]', 'train[80%:]', True),
    # A malformed expression may overlap with any other.
    ('shuffled(train)[:200]', 'shuffled(train[200:]', True),
    ('all', 'all', True),
  ],
)
def test_overlap_at_any_size(one, other, expected):
  assert splits.may_overlap(one, other) is expected


# ---- Selections --------------------------------------------------------------


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


def _pairs(count=25):
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
  assert exact > 6
  assert disjoint > 3


@pytest.mark.parametrize(
  'split, whole',
  [
    ('train', 101),
    ('shuffled(train[:50])[:10%]+test[:3]', 53),
    ('shuffled(shuffled(train)[:50])[:10%]', 101),
  ],
)
def test_whole_is_the_size_a_random_part_is_taken_from(split, whole):
  assert splits.resolve(split, SIZES).whole == whole
