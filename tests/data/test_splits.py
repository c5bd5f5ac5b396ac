"""Guards split expressions: their records, order, overlap, and errors."""

import pytest

from vit_jax.data import splits
from vit_jax.data.selection import Range, Selection, Shuffled

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
    ('shuffled(train[:99%])[:10%]', 'shuffled(train[98%:])', True),
    # The order holds each record twice.
    ('shuffled(train+train)[:9%]', 'shuffled(train+train)[9%:]', True),
    ('train[:200]', 'train[80%:]', True),
    ('shuffled(train)[:200]', 'shuffled(train)[80%:]', True),
    # A malformed expression may overlap with any other.
    ('shuffled(train)[:200]', 'shuffled(train[200:]', True),
    ('all', 'all', True),
  ],
)
def test_overlap_at_any_size(one, other, expected):
  assert splits.may_overlap(one, other) is expected
  assert splits.may_overlap(other, one) is expected
