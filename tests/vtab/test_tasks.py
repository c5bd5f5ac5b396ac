"""Guards the 19 tasks: their table, labels, splits, and records."""

import sys

import pytest

from tests.vtab import made_data
from vit_jax import data
from vit_jax.data import splits
from vit_jax.data.ops import decoding
from vit_jax.vtab.tasks import TASKS, TRAIN800

# TFDS name -> examples of the splits, and of the reported accuracy.
_SIZES = """
caltech101        train=3059 test=6084 6084
cifar100          train=50000 test=10000 10000
dtd               train=1880 validation=1880 test=1880 1880
oxford_flowers102 train=1020 validation=1020 test=6149 6149
oxford_iiit_pet   train=3680 test=3669 3669
sun397/tfds       train=76128 validation=10875 test=21750 21750
svhn_cropped      train=73257 test=26032 extra=531131 26032
patch_camelyon    train=262144 validation=32768 test=32768 32768
eurosat/rgb       train=27000 5400
resisc45          train=31500 6300
diabetic_retinopathy_detection/btgraham-300 train=35126 validation=10906 test=42670 42670
clevr             train=70000 validation=15000 test=15000 15000
dmlab             train=65550 validation=22628 test=22735 22735
dsprites          train=737280 73728
kitti             train=6347 validation=423 test=711 711
smallnorb         train=24300 test=24300 12150
"""  # noqa: E501
SIZES = {row.split()[0]: row.split()[1:] for row in _SIZES.strip().split('\n')}


def test_the_settings_of_the_tasks():
  # Of the paper's Table 9: 7 natural, 4 specialized and 8 structured tasks.
  assert [task.num_classes for task in TASKS.values()] == [
    *(102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5),
    *(8, 6, 6, 16, 16, 4, 18, 9),
  ]


# The place of the first of the 200 images, where it is not 0.
FIRST_OF_200 = {
  **{'caltech101': 2754, 'cifar100': 45_000, 'pets': 2944, 'svhn': 65_931},
  **{'eurosat': 16_200, 'resisc45': 18_900},
  **dict.fromkeys(['clevr_count', 'clevr_dist'], 63_000),
  **dict.fromkeys(['dsprites_location', 'dsprites_orientation'], 589_824),
}


@pytest.mark.parametrize('name', TASKS)
def test_training_splits_have_1000_images_and_exclude_the_test_split(name):
  task = TASKS[name]
  *sizes, tested = SIZES[task.builder.split(':')[0]]
  sizes = {k: int(n) for k, n in (size.split('=') for size in sizes)}
  [first] = splits.resolve(TRAIN800, sizes).parts
  [held_out] = splits.resolve(task.val200, sizes).parts
  assert first == ('train', 0, 800)
  start = FIRST_OF_200.get(name, 0)
  assert held_out[1:] == (start, start + 200)
  trained = splits.resolve(task.train800val200, sizes)
  assert trained.parts == (first, held_out)
  test = splits.resolve(task.test, sizes)
  assert len(test) == int(tested)
  assert not test.shared(trained)
  assert not trained._repeats()


# Labels -----------------------------------------------------------------------


def _label(name, **record):
  return TASKS[name].label(record)


def test_clevr_count():
  for label, name in enumerate(TASKS['clevr_count'].class_names):
    number = int(name.removesuffix(' objects'))
    assert _label('clevr_count', objects={'size': [1] * number}) == label


@pytest.mark.parametrize(
  'depths, label',
  [
    # An edge belongs to the class below it.
    *(((12, 0.5, 11), 0), ((8,), 0), ((9, 8.01), 1), ((8.5, 9), 1)),
    *(((8.6,), 2), ((9.25,), 3), ((10,), 4), ((10.1, 20), 5)),
  ],
)
def test_clevr_distance(depths, label):
  objects = {'pixel_coords': made_data.points(*depths)}
  assert _label('clevr_dist', objects=objects) == label


@pytest.mark.parametrize(
  'objects, label',
  [
    # Car, van, truck: 0, 1, 2; pedestrian: 3. A vehicle beside the camera also
    # has the first class.
    *(([(0, 7.5), (1, 30)], 0), ([(1, 8)], 0), ([(0, -2)], 0)),
    *(([(2, 8.5), (3, 1)], 1), ([(0, 20)], 1), ([(2, 20.5), (0, 60)], 2)),
    *(([(3, 5), (7, -1000)], 3), ([], 3)),
  ],
)
def test_kitti_distance(objects, label):
  record = {
    'type': [kind for kind, _ in objects],
    'location': made_data.points(*(z for _, z in objects)),
  }
  assert _label('kitti_dist', objects=record) == label


# Records, written with TFDS's features of each data set -----------------------


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  path = str(tmp_path_factory.mktemp('tfds'))
  for name in {task.builder for task in TASKS.values()}:
    made_data.write(name, path)
  return path


@pytest.mark.parametrize('name', TASKS)
def test_records(name, data_dir):
  source = data.open_source(f'vtab:{name}', data_dir=data_dir)
  assert source.info.spec == f'vtab:{name}'
  assert source.info.splits == {'train': 8, 'validation': 8, 'test': 8}
  assert source.info.num_classes == TASKS[name].num_classes
  assert len(set(source.info.class_names)) == source.info.num_classes
  view = data.View(source, 'train[:2]')
  assert [record.label for record in view] == made_data.LABELS.get(name, [0, 1])
  assert [record.name for record in view] == ['train/0', 'train/1']
  black, other = (decoding.decode(record.image, 3) for record in view)
  assert not black.any()
  # Only dSprites, which stores 0 and 1, becomes brighter.
  assert (other == (255 if name.startswith('dsprites') else 1)).all()
  assert 'tensorflow' not in sys.modules
