"""Guards how data sets of TFDS get random access, with all features."""

import io
import json
import pathlib
import struct
import sys

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core import read_only_builder

from tests.data import tfds_from_folder
from tests.prepare_data.odd_files import PNG
from tests.vtab import made_data
from vit_jax import data
from vit_jax.prepare_data import tfds_copy
from vit_jax.vtab.tasks import TASKS


def to_tfrecord(data_dir):
  """Replaces ArrayRecord files in a tree by TFRecord files, without TensorFlow.

  The format: https://www.tensorflow.org/tutorials/load_data/tfrecord
  """
  for info in pathlib.Path(data_dir).rglob('dataset_info.json'):
    builder = read_only_builder.builder_from_directory(info.parent)
    for split in builder.info.splits:
      source = builder.as_data_source(
        split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
      )
      at = 0
      paths = map(pathlib.Path, builder.info.splits[split].filepaths)
      for path, n in zip(
        paths, builder.info.splits[split].shard_lengths, strict=True
      ):
        name = path.name.replace('.array_record-', '.tfrecord-')
        records = [source[i] for i in range(at, at + n)]
        at += n
        path.with_name(name).write_bytes(
          b''.join(
            struct.pack('<QI', len(r), 7) + r + struct.pack('<I', 7)
            for r in records
          )
        )
        path.unlink()
    content = json.loads(info.read_text()) | {'fileFormat': 'tfrecord'}
    info.write_text(json.dumps(content))


def copy(name, to, data_dir='', part=(0, 1)):
  return tfds_copy.prepare(f'tfds:{name}', str(to), str(data_dir), part, 1)


BUILDERS = {task.later_builder or task.builder for task in TASKS.values()}
BUILDERS.add('imagenet2012')


@pytest.fixture(scope='module')
def tfrecords(tmp_path_factory):
  """Returns a folder of all of VTAB's data sets, stored as TFRecord."""
  folder = tmp_path_factory.mktemp('tfrecords')
  for name in sorted(BUILDERS):
    made_data.write(name, str(folder))
  to_tfrecord(folder)
  return folder


@pytest.fixture(scope='module')
def copied(tfrecords, tmp_path_factory):
  folder = tmp_path_factory.mktemp('copied')
  for name in sorted(BUILDERS):
    copy(name, folder, tfrecords)
  assert 'tensorflow' not in sys.modules
  return folder


def test_imagenet(copied):
  source = data.open_source('tfds:imagenet2012', data_dir=str(copied))
  assert source.info.num_classes == 1000
  assert [source.read('train', i).label for i in range(2)] == [0, 1]


@pytest.mark.parametrize('task', TASKS)
def test_the_tasks_of_vtab(task, tfrecords, copied):
  with pytest.raises(ValueError, match=r'stored as \[.tfrecord.\]'):
    data.open_source(f'vtab:{task}', data_dir=str(tfrecords))
  source = data.open_source(f'vtab:{task}', data_dir=str(copied))
  assert source.info.num_classes == TASKS[task].num_classes
  assert source.info.splits == {'train': 8, 'validation': 8, 'test': 8}
  labels = [source.read('train', i).label for i in range(2)]
  assert labels == made_data.LABELS.get(task, [0, 1])


@pytest.fixture
def small(tmp_path):
  """Returns a folder of `tfds:small` as TFRecord, with three features."""
  features = {
    'image': tfds.features.Image(),
    'label': tfds.features.ClassLabel(names=['a', 'b']),
    'words': tfds.features.Sequence(tfds.features.Text()),
  }
  examples = [
    {'image': io.BytesIO(PNG), 'label': i % 2, 'words': ['x'] * i}
    for i in range(5)
  ]
  tfds_from_folder.write_examples(
    {'train': examples}, features, tmp_path / 'old', 'small'
  )
  to_tfrecord(tmp_path / 'old')
  return tmp_path / 'old'


def _read(data_dir):
  raw = tfds.builder('small', data_dir=str(data_dir)).as_data_source('train')
  return [(int(e['label']), list(e['words'])) for e in raw]


def test_all_features_stay(small, tmp_path):
  report = copy('small', tmp_path / 'new', small)
  assert 'train 5' in report
  assert _read(tmp_path / 'new') == [(i % 2, [b'x'] * i) for i in range(5)]
  assert 'random access already' in copy('small', tmp_path / 'new', small)


def test_a_part_leaves_the_rest_to_others(small, tmp_path):
  report = copy('small', tmp_path / 'new', small, part=(1, 2))
  assert 'Others have 1 files left' in report
  copy('small', tmp_path / 'new', small, part=(0, 2))
  assert len(_read(tmp_path / 'new')) == 5


@pytest.mark.parametrize(
  'keep, words',
  [
    (lambda b: b[:-1], 'ends within a record'),
    (lambda b: b[:-30], 'ends within a record'),
    (lambda b: b + struct.pack('<QI', 1, 0) + b'x1234', 'has 6 records'),
  ],
)
def test_damaged_files(small, tmp_path, keep, words):
  [path] = small.rglob('*.tfrecord-*')
  path.write_bytes(keep(path.read_bytes()))
  with pytest.raises(ValueError, match=words):
    copy('small', tmp_path / 'new', small)
  assert not list((tmp_path / 'new').rglob('*array_record*'))
