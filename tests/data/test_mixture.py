"""Guards `mix:`: how often each record occurs, classes, and order."""

import collections
import pickle

import pytest

from tests.prepare_data.odd_files import JPEG
from vit_jax import data


def _folder(root, **classes):
  for name, number in classes.items():
    for i in range(number):
      path = root / 'train' / name / f'{i:03}.jpg'
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(JPEG)
  return f'folder:{root}'


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  return _folder(tmp_path_factory.mktemp('one') / 'one', owl=30, auk=20)


@pytest.fixture(scope='module')
def other(tmp_path_factory):
  return _folder(tmp_path_factory.mktemp('other') / 'other', wren=5, owl=5)


def _counts(spec):
  source = data.open_source(spec)
  view = data.View(source, 'train')
  names = source.info.class_names
  found = collections.Counter()
  for i in range(len(view)):
    record = view[i]
    assert record.name == view.name(i)
    assert record.label == view.label(i) == source.labels('train')[i]
    assert names[record.label] in record.name
    found[record.name] += 1
  return found


@pytest.mark.parametrize(
  'weights, of_one, of_other',
  [
    ((5, 1), 50, 10),  # As large as they are: each record once.
    ((0.5, 0.5), 50, 50),
    ((1, 3), 50, 150),
    ((0.8, 0.2), 50, 12),  # Each of the ten once, two of them twice.
    ((9, 1), 90, 10),
  ],
)
def test_weights(one, other, weights, of_one, of_other):
  found = _counts(f'mix:{one}@{weights[0]}+{other}@{weights[1]}')
  for part, size, total in (('one', 50, of_one), ('other', 10, of_other)):
    mine = [n for name, n in found.items() if f'/{part}/' in name]
    assert len(mine) == size
    assert sum(mine) == total
    assert max(mine) - min(mine) <= 1


def test_the_records_that_occur_again_are_a_random_part(one, other):
  source = data.open_source(f'mix:{one}@0.8+{other}@0.2')
  # The order of ten records by the seed 1 begins with 9 and 5.
  again = [
    source.name('train', 60 + i).rpartition('/other/')[2] for i in (0, 1)
  ]
  assert again == ['train/wren/004.jpg', 'train/wren/000.jpg']


def test_a_mixture_is_the_same_everywhere(one, other):
  spec = f'mix:{one}@0.3+{other}@0.7'
  source = data.open_source(spec)
  again = pickle.loads(pickle.dumps(data.open_source(spec)))
  for i in (0, 49, 50, 63, len(data.View(source, 'train')) - 1):
    assert source.read('train', i) == again.read('train', i)
  assert source.facts('train') == again.facts('train')
  others = data.open_source(f'mix:{one}@0.4+{other}@0.6').facts('train')
  assert others != source.facts('train')


def test_several_labels(one):
  source = data.open_source(f'mix:{one}@1+shapes:all@1')
  assert source.info.multi_label
  last = len(data.View(source, 'train')) - 1
  assert isinstance(source.read('train', 0).label, tuple)
  assert isinstance(source.label('train', last), tuple)
  assert source.labels('train') is None


@pytest.mark.parametrize(
  'text, words',
  [
    ('digits', "'digits' is not SPEC@WEIGHT"),
    ('digits@1+shapes', "'shapes' is not SPEC@WEIGHT"),
    ('digits@0', 'positive weight'),
    ('digits@inf', 'positive weight'),
    ('nothing@1', 'unknown or incomplete'),
  ],
)
def test_wrong_texts(text, words):
  with pytest.raises(ValueError, match=words):
    data.open_source(f'mix:{text}')
