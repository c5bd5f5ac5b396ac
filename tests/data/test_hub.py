"""Guards `hf:`: rows, labels and class names of what `datasets` reads."""

import pickle

import pytest

from tests.prepare_data.imagenet21k import tar_file
from tests.prepare_data.odd_files import JPEG, PNG
from vit_jax import data

datasets = pytest.importorskip('datasets')
pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
  """Keeps what `load_dataset` converts out of the user's own folder."""
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')


def _write(path, images, labels, *, struct=True):
  """Writes Parquet that does not say that the bytes are images."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if struct:
    images = [{'bytes': b, 'path': None} for b in images]
  pq.write_table(pa.table({'image': images, 'label': labels}), path)


def _rows(images, labels):
  features = datasets.Features(
    {
      'image': datasets.Image(),
      'label': datasets.ClassLabel(names=['auk', 'owl']),
      'text': datasets.Value('string'),
    }
  )
  images = [{'bytes': b, 'path': None} for b in images]
  content = {'image': images, 'label': labels, 'text': ['x'] * len(labels)}
  return datasets.Dataset.from_dict(content, features=features)


def _records(source, split='train'):
  view = data.View(source, split)
  return [(view[i].image, view[i].label) for i in range(len(view))]


@pytest.mark.parametrize('form', ['saved', 'parquet'])
def test_a_data_set_with_class_names(tmp_path, form):
  folder = tmp_path / 'set'
  train, test = _rows([JPEG, PNG, JPEG], [1, 0, 1]), _rows([PNG], [-1])
  if form == 'saved':
    datasets.DatasetDict(train=train, test=test).save_to_disk(folder)
  else:
    train.to_parquet(folder / 'train-00000-of-00001.parquet')
    test.to_parquet(folder / 'test-00000-of-00001.parquet')
  source = data.open_source(f'hf:{folder}')
  assert source.info.splits == {'train': 3}  # No row of the other has a label.
  assert source.info.class_names == ('auk', 'owl')
  expected = [(JPEG, 1), (PNG, 0), (JPEG, 1)]
  assert _records(source) == expected
  assert _records(pickle.loads(pickle.dumps(source))) == expected
  assert source.name('train', 2) == 'train/2'
  assert source.facts('train') == data.open_source(f'hf:{folder}').facts(
    'train'
  )


def test_other_structs_and_rows_without_an_image(tmp_path):
  images = [{'bytes': JPEG, 'kind': 'x'}, None, {'bytes': None, 'kind': 'y'}]
  path = tmp_path / 'x/a.parquet'
  path.parent.mkdir()
  pq.write_table(pa.table({'image': images, 'label': [0, 1, 1]}), path)
  source = data.open_source(f'hf:{tmp_path}/x')
  assert _records(source) == [(JPEG, 0), (b'', 1), (b'', 1)]


def test_files_that_do_not_fit_together_are_named(tmp_path):
  _write(tmp_path / 'x/train-0.parquet', [JPEG], [0])
  pq.write_table(
    pa.table({'photo': [JPEG], 'label': [0]}), tmp_path / 'x/train-1.parquet'
  )
  with pytest.raises(ValueError, match=r'(?s)cannot be opened.*photo'):
    data.open_source(f'hf:{tmp_path}/x')


@pytest.mark.parametrize('struct', [True, False])
def test_parquet_of_other_programs(tmp_path, struct):
  _write(tmp_path / 'x/train-0.parquet', [JPEG, PNG], [0, 2], struct=struct)
  _write(tmp_path / 'x/train-1.parquet', [JPEG], [1], struct=struct)
  _write(tmp_path / 'x/test-0.parquet', [PNG], [1], struct=struct)
  source = data.open_source(f'hf:{tmp_path}/x')
  assert _records(source) == [(JPEG, 0), (PNG, 2), (JPEG, 1)]
  assert _records(source, 'test') == [(PNG, 1)]


def test_a_webdataset(tmp_path):
  files = {'0.cls': b'2', '0.jpg': JPEG, '1.cls': b'0', '1.jpg': PNG}
  for split in ('train', 'test'):
    (tmp_path / f'x-{split}-0.tar').write_bytes(tar_file(files))
  keys = {'image_key': 'jpg', 'label_key': 'cls'}
  source = data.open_source(f'hf:{tmp_path}', **keys)
  assert source.info.class_names == ('0', '1', '2')
  assert _records(source) == _records(source, 'test') == [(JPEG, 2), (PNG, 0)]


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
  _write(tmp_path / 'x/a.parquet', [JPEG] * 3, labels)
  source = data.open_source(f'hf:{tmp_path}/x')
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
    ([0, 1], {'image_key': 'label'}, 'is .*int64.*; expected images'),
  ],
)
def test_wrong_columns(tmp_path, labels, options, words):
  _write(tmp_path / 'x/a.parquet', [JPEG, PNG], labels)
  with pytest.raises(ValueError, match=words):
    data.open_source(f'hf:{tmp_path}/x', **options)
