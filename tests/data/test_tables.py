"""Guards `parquet:` and `hf:`: rows, labels and class names."""

import json
import pickle

import pytest

from tests.prepare_data.odd_files import JPEG, PNG
from vit_jax import data

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')

NAMES = {'info': {'features': {'label': {'names': ['auk', 'emu', 'owl']}}}}


def _write(path, images, labels, *, struct=True, names=None, group=2):
  path.parent.mkdir(parents=True, exist_ok=True)
  if struct:
    images = [b and {'bytes': b, 'path': None} for b in images]
  table = pa.table({'image': images, 'label': labels})
  if names:
    table = table.replace_schema_metadata(
      {b'huggingface': json.dumps(names).encode()}
    )
  pq.write_table(table, path, row_group_size=group)


def _records(source, split='train'):
  view = data.View(source, split)
  return [(view[i].image, view[i].label) for i in range(len(view))]


@pytest.mark.parametrize('struct', [True, False])
def test_rows_in_any_order(tmp_path, struct):
  images = [b'image %d' % i for i in range(7)]
  _write(
    tmp_path / 'x/data/train-0.parquet', images[:5], [0, 2, 2, 1, 0],
    struct=struct, names=NAMES,
  )  # fmt: skip
  _write(tmp_path / 'x/data/train-1.parquet', images[5:], [2, 2], struct=struct)
  _write(tmp_path / 'x/data/test-0.parquet', [b'test'], [1], struct=struct)
  source = data.open_source(f'parquet:{tmp_path}/x')
  assert source.info.splits == {'test': 1, 'train': 7}
  assert source.info.class_names == ('auk', 'emu', 'owl')
  labels = [0, 2, 2, 1, 0, 2, 2]
  order = [6, 0, 3, 4, 1, 5, 2]
  for made in (source, pickle.loads(pickle.dumps(source))):
    found = [made.read('train', i) for i in order]
    assert [r.image for r in found] == [images[i] for i in order]
    assert [r.label for r in found] == [labels[i] for i in order]
  assert source.name('train', 3) == 'train/3'
  assert _records(source, 'test') == [(b'test', 1)]


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
    ([0, 1], {'image_key': 'label'}, 'is int64; expected bytes'),
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
  datasets = pytest.importorskip('datasets')
  features = datasets.Features(
    {
      'image': datasets.Image(),
      'label': datasets.ClassLabel(names=['auk', 'owl']),
      'text': datasets.Value('string'),
    }
  )

  def rows(images, labels):
    images = [{'bytes': b, 'path': None} for b in images]
    content = {'image': images, 'label': labels, 'text': ['x'] * len(labels)}
    return datasets.Dataset.from_dict(content, features=features)

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
