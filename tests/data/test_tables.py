"""Guards `parquet:` and `hf:`: rows, labels and class names."""

import pickle

import pytest

from tests.prepare_data.odd_files import JPEG, PNG
from vit_jax import data

datasets = pytest.importorskip('datasets')
pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')


def _features(*names):
  label = datasets.ClassLabel(names=names)
  return datasets.Features({'image': datasets.Image(), 'label': label})


def _write(path, images, labels, *, struct=True, names=()):
  path.parent.mkdir(parents=True, exist_ok=True)
  if struct:
    images = [b and {'bytes': b, 'path': None} for b in images]
  number = [*range(len(labels))]
  table = pa.table({'image': images, 'label': labels, 'number': number})
  if names:
    metadata = _features(*names).arrow_schema.metadata
    table = table.replace_schema_metadata(metadata)
  pq.write_table(table, path, row_group_size=2)


def _records(source, split='train'):
  view = data.View(source, split)
  return [(view[i].image, view[i].label) for i in range(len(view))]


@pytest.mark.parametrize('struct', [True, False])
def test_rows_in_any_order(tmp_path, struct):
  images = [b'image %d' % i for i in range(6)] + [None]
  names = ('auk', 'emu', 'owl')
  files = {
    'train-0': (images[:5], [0, 2, 2, 1, 0]),
    'train-1': (images[5:], [2, 2]),
    'test-0': ([b'test'], [1]),
  }
  for name, content in files.items():
    path = tmp_path / f'x/data/{name}.parquet'
    # The Hub's images are structs, and its files have names.
    _write(path, *content, struct=struct, names=names if struct else ())
  source = data.open_source(f'parquet:{tmp_path}/x')
  assert source.info.splits == {'test': 1, 'train': 7}
  assert source.info.class_names == (names if struct else ('0', '1', '2'))
  labels = [0, 2, 2, 1, 0, 2, 2]
  order = [6, 0, 3, 4, 1, 5, 2]
  for made in (source, pickle.loads(pickle.dumps(source))):
    found = [made.read('train', i) for i in order]
    assert [r.image for r in found] == [images[i] or b'' for i in order]
    assert [r.label for r in found] == [labels[i] for i in order]
  assert source.name('train', 3) == 'train/3'
  assert _records(source, 'test') == [(b'test', 1)]
  if struct:
    _write(tmp_path / 'x/data/val.parquet', [b'1'], [0], names=('emu', 'auk'))
    with pytest.raises(ValueError, match=r'other class names .* one list'):
      data.open_source(f'parquet:{tmp_path}/x')


@pytest.mark.parametrize(
  'labels, names, expected',
  [
    (['owl', 'auk', 'owl'], ('auk', 'owl'), [1, 0, 1]),
    ([3, 0, 1], ('0', '1', '2', '3'), [3, 0, 1]),
    ([[0, 2], [1], []], ('0', '1', '2'), [(0, 2), (1,), ()]),
    ([['b', 'a'], ['b'], ['c']], ('a', 'b', 'c'), [(1, 0), (1,), (2,)]),
  ],
)
def test_kinds_of_labels(tmp_path, labels, names, expected):
  _write(tmp_path / 'a.parquet', [b'1', b'2', b'3'], labels)
  source = data.open_source(f'parquet:{tmp_path}/a.parquet')
  assert source.info.class_names == names
  assert source.info.multi_label == isinstance(labels[0], list)
  assert [label for _, label in _records(source)] == expected
  assert [source.label('train', i) for i in range(3)] == expected


@pytest.mark.parametrize(
  'labels, options, words',
  [
    ([0, -1], {}, 'the label -1 is none of the 1 classes'),
    ([0, 5], {'num_classes': 3}, 'the label 5 is none of the 3'),
    ([0.5, 1.5], {}, 'of type float'),
    ([0, None], {}, 'of type NoneType, int'),
    ([0, 2**31], {}, "label_key='label'.* 2147483648 .* ids"),
    ([0, 1], {'label_key': 'class'}, "no column label_key='class'"),
    ([0, 1], {'image_key': 'number'}, 'expected images, or their bytes'),
  ],
)
def test_wrong_columns(tmp_path, labels, options, words):
  _write(tmp_path / 'a.parquet', [b'1', b'2'], labels)
  with pytest.raises(ValueError, match=words):
    data.open_source(f'parquet:{tmp_path}/a.parquet', **options)


# hf: --------------------------------------------------------------------------


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Returns a folder that `save_to_disk` of the Hub's library has written."""

  def rows(images, labels):
    images = [{'bytes': b, 'path': None} for b in images]
    content = {'image': images, 'label': labels}
    return datasets.Dataset.from_dict(content, features=_features('auk', 'owl'))

  folder = tmp_path_factory.mktemp('hf') / 'set'
  datasets.DatasetDict(
    train=rows([JPEG, PNG, JPEG], [1, 0, 1]), test=rows([PNG], [-1])
  ).save_to_disk(folder)
  return folder


def test_a_saved_data_set_of_the_hub(saved):
  source = data.open_source(f'hf:{saved}')
  assert source.info.splits == {'train': 3}
  assert source.info.class_names == ('auk', 'owl')
  expected = [(JPEG, 1), (PNG, 0), (JPEG, 1)]
  assert _records(source) == expected
  assert _records(pickle.loads(pickle.dumps(source))) == expected
  assert source.facts('train') == data.open_source(f'hf:{saved}').facts('train')
