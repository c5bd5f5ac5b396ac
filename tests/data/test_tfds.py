"""Guards `tfds:`: prepared data gives the same records, without TensorFlow."""

import io
import json
import pickle
import shlex

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data import tfds_from_folder
from vit_jax import data


def _jpeg(value):
  pixels = np.full((4, 5, 3), value, np.uint8)
  # Zeros at the end must survive.
  return cv2.imencode('.jpg', pixels)[1].tobytes() + b'\0\0'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('folder')
  for split, size in (('train', 5), ('test', 2)):
    for name, offset in (('cat', 0), ('dog', 100)):
      (root / split / name).mkdir(parents=True)
      for i in range(size):
        (root / split / name / f'{i}.jpg').write_bytes(_jpeg(offset + 9 * i))
  return root


@pytest.fixture(scope='module')
def data_dir(folder, tmp_path_factory):
  """Writes `from_folder`, and `tiny` with many kinds of features."""
  path = tmp_path_factory.mktemp('tfds')
  tfds_from_folder.write(folder, path)
  features = {
    'picture': tfds.features.Image(),
    'tags': tfds.features.Sequence(tfds.features.ClassLabel(names=['x', 'y'])),
    'ids': tfds.features.Sequence(np.int32),
    'number': np.int64,
    'unnamed': tfds.features.ClassLabel(num_classes=3),
    'ratio': np.float32,
    'vector': tfds.features.Tensor(shape=(2,), dtype=np.int64),
    'mask': tfds.features.Image(),
  }
  examples = [
    {
      'picture': io.BytesIO(_jpeg(i)),
      'tags': [1, 0][:i],
      'ids': [4] * i,
      'number': i,
      'unnamed': 2,
      'ratio': 0.5,
      'vector': [1, 2],
      'mask': io.BytesIO(b'not an image'),
    }
    for i in range(3)
  ]
  tfds_from_folder.write_examples({'train': examples}, features, path, 'tiny')
  return str(path)


def _tiny(data_dir, label_key, **kwargs):
  return data.open_source(
    'tfds:tiny',
    data_dir=data_dir,
    image_key='picture',
    label_key=label_key,
    **kwargs,
  )


def test_same_records_as_the_folder(folder, data_dir):
  source = data.open_source('tfds:from_folder', data_dir=data_dir)
  assert source.info.splits == {'train': 10, 'test': 4}
  assert source.info.class_names == ('cat', 'dog')
  assert source.info.spec == 'tfds:from_folder'
  assert not source.info.multi_label
  view = data.View(source, 'train[3:7]+test[-1:]')
  expected = [27, 36, 100, 109, 109]
  assert [record.image for record in view] == [_jpeg(v) for v in expected]
  assert [record.label for record in view] == [0, 0, 1, 1, 1]
  assert [view[0].name, view[4].name] == ['train/3', 'test/3']
  files = data.View(data.open_source(f'folder:{folder}'), 'train+test')
  for file, record in zip(files, data.View(source, 'train+test'), strict=True):
    assert (file.image, file.label) == (record.image, record.label)


def _tags_and_parity(features):
  assert sorted(features) == [
    *('ids', 'number', 'ratio', 'tags', 'unnamed', 'vector'),
  ]
  return len(features['tags']) + 2 * (features['number'] % 2)


HERE = __name__


def test_a_function_computes_labels(data_dir):
  source = _tiny(data_dir, f'{HERE}:_tags_and_parity', num_classes=4)
  assert source.info.class_names == ('0', '1', '2', '3')
  assert not source.info.multi_label
  records = list(data.View(source, 'train'))
  assert [record.label for record in records] == [0, 3, 2]
  assert [record.image for record in records] == [_jpeg(i) for i in range(3)]
  assert [data.View(source, 'train').label(i) for i in range(3)] == [0, 3, 2]
  copy = pickle.loads(pickle.dumps(source))
  assert copy.read('train', 1).label == 3


@pytest.mark.parametrize(
  'keys, reason',
  [
    (
      {'label_key': 'tags'},
      "no feature image_key='image' that is an Image; .*'picture': 'Image'",
    ),
    (
      {'image_key': 'picture', 'label_key': 'lable'},
      "no feature label_key='lable'; .*'ratio': 'Tensor'",
    ),
    ({'image_key': 'picture', 'label_key': 'ratio'}, 'expected a ClassLabel'),
    ({'image_key': 'picture', 'label_key': 'number'}, 'set num_classes'),
    (
      {'image_key': 'picture', 'label_key': 'tags', 'num_classes': 7},
      'has 2 classes, but num_classes=7',
    ),
    (
      {'image_key': 'picture', 'label_key': 'number', 'num_classes': 2**31},
      "label_key='number'.* 2147483647 .* num_classes",
    ),
  ],
)
def test_feature_errors(data_dir, keys, reason):
  with pytest.raises(ValueError, match=reason):
    data.open_source('tfds:tiny', data_dir=data_dir, **keys)


def test_a_folder_without_a_data_set(tmp_path):
  for folder, words in (('/absent', 'there is no folder'), ('', 'holds 0 da')):
    with pytest.raises(ValueError, match=f'{words}.*vit_jax.prepare_data'):
      data.open_source(f'arrayrecord:{tmp_path}{folder}')


def test_data_stored_only_as_tfrecord_is_an_error(tmp_path, folder):
  tmp_path /= "it's here"
  tfds_from_folder.write(folder, tmp_path)
  path = tmp_path / 'from_folder/1.0.0/dataset_info.json'
  description = json.loads(path.read_text()) | {'fileFormat': 'tfrecord'}
  path.write_text(json.dumps(description))
  with pytest.raises(ValueError, match=r"stored as \['tfrecord'\]") as error:
    data.open_source('tfds:from_folder', data_dir=str(tmp_path))
  command = shlex.split(str(error.value).rpartition(': ')[2])
  assert command[:2] == ['tfds', 'convert_format']
  assert f'--dataset_version_dir={path.parent}' in command
