"""Guards the 19 tasks: their table, labels, splits, and records."""

import io
import sys

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from vit_jax import data
from vit_jax.data import splits
from vit_jax.data.ops import decoding
from vit_jax.data.sources import vtab_tasks

# The table --------------------------------------------------------------------

# Task, TFDS name, split of the 200 images, test split, number of classes, and
# whether training images are cropped and flipped.
TABLE = """
caltech101           caltech101:3.*.*        train[2754:2954]     test            102 y y
cifar100             cifar100:3.*.*          train[45000:45200]   test            100 y y
dtd                  dtd:3.*.*               validation[:200]     test             47 y y
flowers102           oxford_flowers102:2.*.* validation[:200]     test            102 y y
pets                 oxford_iiit_pet:3.*.*   train[2944:3144]     test             37 y y
sun397               sun397/tfds:4.*.*       validation[:200]     test            397 y y
svhn                 svhn_cropped:3.*.*      train[65931:66131]   test             10 y y
camelyon             patch_camelyon:2.*.*    validation[:200]     test              2 y y
eurosat              eurosat/rgb:2.*.*       train[16200:16400]   train[21600:]    10 y y
resisc45             resisc45:3.*.*          train[18900:19100]   train[25200:]    45 y y
retinopathy          diabetic_retinopathy_detection/btgraham-300:3.*.* validation[:200] test 5 y y
clevr_count          clevr:3.*.*             train[63000:63200]   validation        8 n y
clevr_dist           clevr:3.*.*             train[63000:63200]   validation        6 n y
dmlab                dmlab:2.0.1             validation[:200]     test              6 n y
dsprites_location    dsprites:2.*.*          train[589824:590024] train[663552:]   16 n n
dsprites_orientation dsprites:2.*.*          train[589824:590024] train[663552:]   16 y n
kitti_dist           kitti:3.1.0             validation[:200]     test              4 n y
smallnorb_azimuth    smallnorb:2.*.*         test[:200]           test[50%:]       18 y n
smallnorb_elevation  smallnorb:2.*.*         test[:200]           test[50%:]        9 y y
"""  # noqa: E501
ROWS = {row.split()[0]: row.split()[1:] for row in TABLE.strip().split('\n')}

# TFDS name -> (examples of the splits, examples of the reported accuracy).
SIZES = {
  'caltech101': ({'train': 3059, 'test': 6084}, 6084),
  'cifar100': ({'train': 50_000, 'test': 10_000}, 10_000),
  'dtd': ({'train': 1880, 'validation': 1880, 'test': 1880}, 1880),
  'oxford_flowers102': (
    {'train': 1020, 'validation': 1020, 'test': 6149},
    6149,
  ),
  'oxford_iiit_pet': ({'train': 3680, 'test': 3669}, 3669),
  'sun397/tfds': (
    {'train': 76_128, 'validation': 10_875, 'test': 21_750},
    21_750,
  ),
  'svhn_cropped': (
    {'train': 73_257, 'test': 26_032, 'extra': 531_131},
    26_032,
  ),
  'patch_camelyon': (
    {'train': 262_144, 'validation': 32_768, 'test': 32_768},
    32_768,
  ),
  'eurosat/rgb': ({'train': 27_000}, 5400),
  'resisc45': ({'train': 31_500}, 6300),
  'diabetic_retinopathy_detection/btgraham-300': (
    {'sample': 10, 'train': 35_126, 'validation': 10_906, 'test': 42_670},
    42_670,
  ),
  'clevr': ({'train': 70_000, 'validation': 15_000, 'test': 15_000}, 15_000),
  'dmlab': ({'train': 65_550, 'validation': 22_628, 'test': 22_735}, 22_735),
  'dsprites': ({'train': 737_280}, 73_728),
  'kitti': ({'train': 6347, 'validation': 423, 'test': 711}, 711),
  'smallnorb': ({'train': 24_300, 'test': 24_300}, 12_150),
}


@pytest.mark.parametrize('name', ROWS)
def test_the_table(name):
  task = vtab_tasks.TASKS[name]
  builder, val200, test, classes, crop, flip = ROWS[name]
  assert task.name == name
  assert task.builder == builder
  assert task.train800 == 'train[:800]'
  assert (task.val200, task.test) == (val200, test)
  assert task.num_classes == int(classes)
  assert (task.crop, task.flip) == (crop == 'y', flip == 'y')


@pytest.mark.parametrize('name', ROWS)
def test_training_splits_have_1000_images_and_exclude_the_test_split(name):
  task = vtab_tasks.TASKS[name]
  sizes, tested = SIZES[task.builder.split(':')[0]]

  def chosen(split):
    return [
      (part, i)
      for part, start, stop in splits.resolve(split, sizes).parts
      for i in range(start, stop)
    ]

  first, held_out = chosen(task.train800), chosen(task.val200)
  assert first == [('train', i) for i in range(800)]
  assert len(held_out) == 200
  assert chosen(task.train800val200) == first + held_out
  test = set(chosen(task.test))
  assert len(test) == tested
  assert len({*first, *held_out}) == 1000
  assert test.isdisjoint({*first, *held_out})


# Labels -----------------------------------------------------------------------


def _label(name, **record):
  return vtab_tasks.TASKS[name].label(record)


def _points(*depths):
  return [np.float32([100, 50, depth]) for depth in depths]


@pytest.mark.parametrize('number, label', [(3, 0), (4, 1), (7, 4), (10, 7)])
def test_clevr_count(number, label):
  assert _label('clevr_count', objects={'size': [1] * number}) == label
  task = vtab_tasks.TASKS['clevr_count']
  assert task.class_names[label] == f'{number} objects'


@pytest.mark.parametrize(
  'depths, label',
  [
    ((12, 0.5, 11), 0),
    # An edge belongs to the class below it.
    ((8,), 0),
    ((9, 8.01), 1),
    ((8.5, 9), 1),
    ((8.6,), 2),
    ((9.25,), 3),
    ((10,), 4),
    ((10.1, 20), 5),
  ],
)
def test_clevr_distance(depths, label):
  objects = {'pixel_coords': _points(*depths)}
  assert _label('clevr_dist', objects=objects) == label


@pytest.mark.parametrize(
  'objects, label',
  [
    # Car, van, truck: 0, 1, 2; pedestrian: 3.
    ([(0, 7.5), (1, 30)], 0),
    ([(1, 8)], 0),
    ([(2, 8.5), (3, 1)], 1),
    ([(0, 20)], 1),
    ([(2, 20.5), (0, 60)], 2),
    ([(3, 5), (7, -1000)], 3),
    ([], 3),
    # A vehicle beside the camera also has the first class.
    ([(0, -2)], 0),
  ],
)
def test_kitti_distance(objects, label):
  record = {
    'type': [kind for kind, _ in objects],
    'location': _points(*(z for _, z in objects)),
  }
  assert _label('kitti_dist', objects=record) == label


# Records, written with TFDS's features of each data set -----------------------

SIZE = 8
# Features of two alternating records that are not just the record's number.
SPECIAL = {
  'clevr': [
    {'objects': [{'pixel_coords': p} for p in _points(9, 8.2, 12)]},
    {'objects': [{'pixel_coords': p} for p in _points(*range(20, 12, -1))]},
  ],
  'kitti': [
    {
      'objects': [
        {'type': kind, 'location': p}
        for kind, p in zip([3, 2], _points(3, 19), strict=True)
      ]
    },
    {'objects': []},
  ],
  'dsprites': [
    {'label_x_position': 31, 'label_orientation': 37},
    {'label_x_position': 1, 'label_orientation': 5},
  ],
  'smallnorb': [
    {'label_azimuth': 17, 'label_elevation': 3},
    {'label_azimuth': 2, 'label_elevation': 8},
  ],
}
LABELS = {
  'clevr_count': [0, 5],
  'clevr_dist': [1, 5],
  'kitti_dist': [1, 3],
  'dsprites_location': [15, 0],
  'dsprites_orientation': [14, 2],
  'smallnorb_azimuth': [17, 2],
  'smallnorb_elevation': [3, 8],
}


def _png(pixels):
  return cv2.imencode('.png', pixels)[1].tobytes()


def _value(feature, i):
  """Returns a value of a feature, which is `i` if possible."""
  if isinstance(feature, tfds.features.Sequence):
    return [_value(feature.feature, i)] * 2
  if isinstance(feature, tfds.features.FeaturesDict):
    return {key: _value(feature[key], i) for key in feature}
  if isinstance(feature, tfds.features.Image):
    shape = [side or SIZE for side in feature.shape]
    return io.BytesIO(_png(np.full(shape, i, np.uint8)))
  if isinstance(feature, tfds.features.Text):
    return 'text'
  if isinstance(feature, tfds.features.BBoxFeature):
    return tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
  return np.full(feature.shape, i, feature.np_dtype)


def _example(features, i, special):
  example = _value(features, i)
  for key, value in special.items():
    if isinstance(value, list):
      other = _value(features[key].feature, i)
      value = [other | part for part in value]
    example[key] = value
  return example


def write(name, data_dir):
  """Writes `SIZE` records of each split with the features of TFDS's own code.

  Args:
    name: TFDS's name, with a version that TFDS can prepare.
    data_dir: folder of the written data set.
  """
  builder = tfds.builder(name, data_dir=data_dir)
  special = SPECIAL.get(builder.name, [{}, {}])

  def examples():
    for i in range(SIZE):
      yield i, _example(builder.info.features, i % 2, special[i % 2])

  builder.info.as_proto.disable_shuffling = True
  # Without a path, TFDS does not look for checksums of downloads.
  type(builder).code_path = None
  builder._split_generators = lambda dl_manager: {
    split: examples() for split in ('train', 'validation', 'test')
  }
  builder.download_and_prepare(file_format='array_record')


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  path = str(tmp_path_factory.mktemp('tfds'))
  for name in {t.later_builder or t.builder for t in vtab_tasks.TASKS.values()}:
    write(name, path)
  return path


@pytest.mark.parametrize('name', ROWS)
def test_records(name, data_dir):
  source = data.open_source(f'vtab:{name}', data_dir=data_dir)
  assert source.info.spec == f'vtab:{name}'
  assert source.info.splits == {'train': 8, 'validation': 8, 'test': 8}
  assert source.info.num_classes == int(ROWS[name][3])
  assert len(set(source.info.class_names)) == source.info.num_classes
  view = data.View(source, 'train[:2]')
  assert [record.label for record in view] == LABELS.get(name, [0, 1])
  assert [record.name for record in view] == ['train/0', 'train/1']
  black, other = (decoding.decode(record.image, 3) for record in view)
  assert not black.any()
  # Only dSprites, which stores 0 and 1, becomes brighter.
  assert (other == (255 if name.startswith('dsprites') else 1)).all()
  assert 'tensorflow' not in sys.modules
