"""Guards `tfds:`: prepared data gives the same records, without TensorFlow."""

import concurrent.futures
import io
import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data import tfds_from_folder
from vit_jax import data
from vit_jax.data import tfds as tfds_source


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
  expected = [
    ('cat', 27),
    ('cat', 36),
    ('dog', 100),
    ('dog', 109),
    ('dog', 109),
  ]
  assert [record.image for record in view] == [_jpeg(v) for _, v in expected]
  assert [record.label for record in view] == [0, 0, 1, 1, 1]
  assert [view[0].name, view[4].name] == ['train/3', 'test/3']
  files = data.View(data.open_source(f'folder:{folder}'), 'train+test')
  for file, record in zip(files, data.View(source, 'train+test'), strict=True):
    assert (file.image, file.label) == (record.image, record.label)


@pytest.mark.parametrize(
  'spec', ['tfds:from_folder:1.0.0', 'tfds:from_folder:1.*.*']
)
def test_versions(data_dir, spec):
  assert data.open_source(spec, data_dir=data_dir).info.spec == spec


def test_multi_label(data_dir):
  source = _tiny(data_dir, 'tags')
  assert source.info.multi_label
  assert source.info.class_names == ('x', 'y')
  labels = [record.label for record in data.View(source, 'train')]
  assert labels == [(), (1,), (1, 0)]


def test_integer_labels(data_dir):
  source = _tiny(data_dir, 'number', num_classes=3)
  assert source.info.class_names == ('0', '1', '2')
  assert [r.label for r in data.View(source, 'train')] == [0, 1, 2]
  source = _tiny(data_dir, 'ids', num_classes=5)
  assert source.info.num_classes == 5
  assert source.info.multi_label
  assert source.read('train', 2).label == (4, 4)
  assert _tiny(data_dir, 'unnamed').info.class_names == ('0', '1', '2')


def _tags_and_parity(features):
  assert sorted(features) == [
    *('ids', 'number', 'ratio', 'tags', 'unnamed', 'vector'),
  ]
  return len(features['tags']) + 2 * (features['number'] % 2)


def _half(features):
  return features['ratio']


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


def test_the_label_functions_of_vtab_are_named_alike(data_dir):
  path = 'vit_jax.data.vtab_labels:plain_label'
  source = data.open_source(
    'tfds:from_folder', data_dir=data_dir, label_key=path, num_classes=2
  )
  plain = data.open_source('tfds:from_folder', data_dir=data_dir)
  for computed, record in zip(
    data.View(source, 'train'), data.View(plain, 'train'), strict=True
  ):
    assert computed == record


@pytest.mark.parametrize(
  'key, classes, message',
  [
    ('no.such.module:f', 4, "cannot import 'no.such.module' (No module named"),
    (':f', 4, "label_key=':f': cannot import ''"),
    ('cv2:', 4, "cv2 has no function ''"),
    (f'{HERE}:lacking', 4, f"{HERE} has no function 'lacking'"),
    (f'{HERE}:HERE', 4, f"{HERE} has no function 'HERE'"),
    (f'{HERE}:_half', 0, 'does not define the number of classes; set num_'),
    (
      f'{HERE}:_tags_and_parity',
      3,
      f'tfds:tiny, train/1: {HERE}:_tags_and_parity returned',
    ),
    (f'{HERE}:_half', 3, 'expected an integer from 0 to 2, as num_classes=3'),
  ],
)
def test_wrong_label_functions(data_dir, key, classes, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    list(data.View(_tiny(data_dir, key, num_classes=classes), 'train'))


def test_class_label_of_unknown_size(data_dir, tmp_path):
  shutil.copytree(f'{data_dir}/tiny', tmp_path / 'tiny')
  path = tmp_path / 'tiny/1.0.0/features.json'
  text = path.read_text()
  path.write_text(
    text.replace('"numClasses": "3"', '"numClasses": "2147483648"')
  )
  with pytest.raises(ValueError, match=r"label_key='unnamed'.* 2147483647 "):
    _tiny(str(tmp_path), 'unnamed')
  path.write_text(text.replace('"numClasses": "3"', ''))
  with pytest.raises(ValueError, match='set num_classes'):
    _tiny(str(tmp_path), 'unnamed')
  source = _tiny(str(tmp_path), 'unnamed', num_classes=4)
  assert source.info.class_names == ('0', '1', '2', '3')


def test_home_is_expanded(data_dir, monkeypatch):
  monkeypatch.setenv('HOME', data_dir)
  source = data.open_source('tfds:from_folder', data_dir='~')
  assert source.read('train', 0).image == _jpeg(0)


def test_other_features_are_not_decoded(data_dir):
  # No decoder accepts the bytes in `mask`.
  assert _tiny(data_dir, 'unnamed').read('train', 1).image == _jpeg(1)


def test_pickles_also_after_reading(data_dir):
  source = data.open_source('tfds:from_folder', data_dir=data_dir)
  record = source.read('train', 6)
  dump = pickle.dumps(source)
  # The pickle must not hold open files.
  assert b'ArrayRecordDataSource' not in dump
  copy = pickle.loads(dump)
  assert copy.info == source.info
  assert copy.read('train', 6) == record
  assert source.read('train', 6) == record


def test_reads_from_many_threads(data_dir):
  source = data.open_source('tfds:from_folder', data_dir=data_dir)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    records = pool.map(lambda i: source.read('train', i % 10), range(200))
    images = [record.image for record in records]
  expected = [_jpeg(100 * c + 9 * i) for c in range(2) for i in range(5)]
  assert images == expected * 20


@pytest.mark.parametrize(
  'keys, reason',
  [
    ({}, "no feature image_key='image'.*'picture': 'Image'"),
    (
      {'image_key': 'picture', 'label_key': 'lable'},
      "no feature label_key='lable'.*'ratio': 'Tensor'",
    ),
    ({'image_key': 'ratio', 'label_key': 'tags'}, "'ratio' is not an Image"),
    ({'image_key': 'picture', 'label_key': 'ratio'}, 'expected a ClassLabel'),
    ({'image_key': 'picture', 'label_key': 'vector'}, 'expected a ClassLabel'),
    ({'image_key': 'picture', 'label_key': 'mask'}, 'expected a ClassLabel'),
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


def test_not_prepared(tmp_path):
  tmp_path /= "it's $HERE"
  with pytest.raises(ValueError, match='is not in') as error:
    data.open_source('tfds:cifar10:3.*.*', data_dir=str(tmp_path))
  first = str(error.value).splitlines()[0]
  *start, code = shlex.split(first.partition('with: ')[2])
  assert start == ['python', '-c']
  assert code.endswith(
    f'tfds.builder("cifar10:3.*.*", data_dir="{tmp_path}")'
    '.download_and_prepare(file_format="array_record")'
  )


def test_a_folder_without_a_data_set(tmp_path):
  tmp_path /= "it's here"
  tmp_path.mkdir()
  with pytest.raises(ValueError, match='holds neither') as error:
    data.open_source(f'arrayrecord:{tmp_path}')
  command = shlex.split(str(error.value).partition('prepare data: ')[2])
  assert command[2:] == [
    *('vit_jax.prepare_data', '--source=SPEC', f'--to={tmp_path}')
  ]


def test_unknown_name(tmp_path):
  with pytest.raises(ValueError, match=r"knows no 'cifar_10'.*'cifar10'"):
    data.open_source('tfds:cifar_10', data_dir=str(tmp_path))


def test_unknown_version(data_dir):
  with pytest.raises(ValueError, match=r'2\.0\.0'):
    data.open_source('tfds:from_folder:2.0.0', data_dir=data_dir)


def _set_formats(tmp_path, folder, **formats):
  """Writes the folder, and sets other formats in its description."""
  tfds_from_folder.write(folder, tmp_path)
  path = tmp_path / 'from_folder/1.0.0/dataset_info.json'
  description = json.loads(path.read_text())
  path.write_text(json.dumps(description | formats))


def test_data_stored_only_as_tfrecord_is_an_error(tmp_path, folder):
  tmp_path /= "it's here"
  _set_formats(tmp_path, folder, fileFormat='tfrecord')
  with pytest.raises(ValueError, match=r"stored as \['tfrecord'\]") as error:
    data.open_source('tfds:from_folder', data_dir=str(tmp_path))
  assert shlex.split(str(error.value).partition('copy: ')[2]) == [
    *('python', '-m', 'vit_jax.prepare_data'),
    *('--source=tfds:from_folder:1.0.0', f'--data_dir={tmp_path}'),
    f'--to={tmp_path}',
  ]


@pytest.mark.parametrize('first', ['tfrecord', 'parquet'])
def test_array_record_beside_another_format(tmp_path, folder, first):
  _set_formats(
    tmp_path,
    folder,
    fileFormat=first,
    alternativeFileFormats=['array_record'],
  )
  source = data.open_source('tfds:from_folder', data_dir=str(tmp_path))
  assert source.read('train', 1).image == _jpeg(9)
  copy = pickle.loads(pickle.dumps(source))
  assert copy.read('test', 0).image == _jpeg(0)


def test_without_tensorflow(data_dir):
  data.open_source('tfds:from_folder', data_dir=data_dir).read('train', 0)
  assert 'tensorflow' not in sys.modules


def test_a_label_is_read_without_the_image(data_dir, monkeypatch):
  source = data.open_source('tfds:from_folder', data_dir=data_dir)
  view = data.View(source, 'train+test')
  expected = [record.label for record in view]
  parsed = []
  features = source._examples._single['label']
  real = type(features).deserialize_example_np

  def spy(self, *args, **kwargs):
    parsed.append(set(self))
    return real(self, *args, **kwargs)

  monkeypatch.setattr(type(features), 'deserialize_example_np', spy)
  assert data.read_labels(view).tolist() == expected
  assert parsed == [{'label'}] * 14
  tiny = _tiny(data_dir, 'tags')
  assert [tiny.label('train', i) for i in range(3)] == [(), (1,), (1, 0)]


_MANY_FILES = """
import resource, sys
from vit_jax.data import open_files
own, hard, files = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (own, hard))
try:
  open_files.allow(files, 'The shards')
except ValueError as error:
  print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
  'own, hard, files, found',
  [
    (1024, 4096, 500, '1024'),  # The limit suffices.
    (1024, 4096, 1024, '4096'),  # ImageNet's number of shards.
    (64, 4096, 4095, 'are 4,095 files that stay open, but .* 4,096 at most'),
  ],
)
def test_the_open_file_limit_covers_all_shards(own, hard, files, found):
  words = [sys.executable, '-c', _MANY_FILES, *map(str, (own, hard, files))]
  out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
  assert re.search(found, out)


def test_the_limit_is_raised_where_shards_are_opened(data_dir, monkeypatch):
  asked = []
  monkeypatch.setattr(
    tfds_source.open_files, 'allow', lambda *args: asked.append(args)
  )
  source = data.open_source('tfds:from_folder', data_dir=data_dir)
  assert not asked
  source.read('train', 0)
  source.read('train', 1)
  [(count, what)] = asked
  assert count == 1
  assert what.startswith("The shards of split 'train' of ")


def test_the_digest_lists_the_shards(data_dir):
  source = data.open_source('tfds:from_folder', data_dir=str(data_dir))
  found = data.digest(data.View(source, 'train'))
  assert len(found['train']['shards']) == 16
  assert found['train'] == source.facts('train') != source.facts('test')
  assert len(found['contents']) == found['examples']
