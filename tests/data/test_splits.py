import pytest

from vit_jax.data import splits

SIZES = {'train': 101, 'test': 10}


@pytest.mark.parametrize(
  'split, expected',
  [
    ('train', [('train', 0, 101)]),
    ('train[:50]', [('train', 0, 50)]),
    ('train[-5:]', [('train', 96, 101)]),
    ('train[:-1]', [('train', 0, 100)]),
    # Percentages round to the nearest example: 33 % of 101 is 33.33, 66 % is
    # 66.66, 98 % is 98.98.
    ('train[33%:66%]', [('train', 33, 67)]),
    ('train[:98%]', [('train', 0, 99)]),
    ('train[98%:]+test', [('train', 99, 101), ('test', 0, 10)]),
    ('test[2:4] + train[:1]', [('test', 2, 4), ('train', 0, 1)]),
    ('test+test', [('test', 0, 10), ('test', 0, 10)]),
    ('all', [('train', 0, 101), ('test', 0, 10)]),
  ],
)
def test_ranges(split, expected):
  assert splits.resolve(split, SIZES) == expected


@pytest.mark.parametrize(
  'split, reason',
  [
    ('trian', "Unknown split 'trian'"),
    ('train[:500]', 'incompatible with 101 examples'),
    ('train[-102:]', 'incompatible with 101 examples'),
    ('train[:101%]', r'should be in \[-100, 100\]'),
    ('train[50:20]', r'train\[50:20\] selects nothing'),
    ('train[:0]', r'train\[0:0\] selects nothing'),
    ('train[101:]+test', r'train\[101:101\] selects nothing'),
    ('train+test[:0]', r'test\[0:0\] selects nothing'),
    ('train[:1shard]', "'shard' unit is not supported"),
    ('train[2shard]', "'shard' unit is not supported"),
    ('all[:5]', "'all' does not support slice"),
    ('train[5]', 'only support slice'),
    ('train[', 'Unrecognized split format'),
    ('', 'Unrecognized split format'),
  ],
)
def test_errors_name_the_expression_and_list_the_splits(split, reason):
  with pytest.raises(ValueError, match=reason) as error:
    splits.resolve(split, SIZES)
  assert f'{split!r} over the splits train (101), test (10)' in str(error.value)


def test_split_called_all():
  with pytest.raises(ValueError, match="cannot be called 'all'"):
    splits.resolve('train', {'train': 3, 'all': 4})
