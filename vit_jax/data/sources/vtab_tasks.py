"""`vtab:TASK`: the 19 tasks of VTAB-1k (arXiv:1910.04867), from TFDS data.

Each task learns from 1,000 images: 800, and 200 for choosing settings. Splits
and labels follow github.com/google-research/task_adaptation. Which tasks crop
and flip at random follows BiT (arXiv:1912.11370, appendix). The 800 images are
those that TFDS stores first, so the versions matter.

The source has all splits of the data set. `TASKS[TASK]` holds the split
expressions for training and evaluation.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from vit_jax.data import source
from vit_jax.data import vtab_labels as labels
from vit_jax.data.sources import tfds as tfds_source

GROUPS = ('natural', 'specialized', 'structured')

# The tasks. -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
  """One of the 19 tasks.

  Attributes:
    name: TASK of its data spec.
    title: the task's name in the paper's Table 9.
    group: one of `GROUPS`.
    builder: TFDS's name of the data, with its version.
    val200: TFDS split expression of the 200 images for choosing settings.
    test: split expression of the images for the reported accuracy.
    num_classes: number of classes.
    train800: split expression of the training images while choosing settings.
    label: function of a record's features that returns its class.
    reads: the features that `label` reads; SEQUENCE/NAME is one in a sequence.
    class_names: names of the classes; if empty, those of the feature `label`.
    image: function that changes the stored image; grey becomes RGB anyway.
    crop: whether training images are cropped at random.
    flip: whether training images are mirrored at random.
    later_builder: a version to use if `builder` is not prepared.
  """

  name: str
  title: str
  group: str
  builder: str
  val200: str
  test: str
  num_classes: int
  train800: str = 'train[:800]'
  label: Callable[[Mapping[str, Any]], int] = labels.plain_label
  reads: tuple[str, ...] = ('label',)
  class_names: tuple[str, ...] = ()
  image: Callable[[bytes], bytes | np.ndarray] | None = None
  crop: bool = True
  flip: bool = True
  later_builder: str = ''

  @property
  def train800val200(self) -> str:
    """Split expression of the 1,000 images of the final training."""
    return f'{self.train800}+{self.val200}'


def _dsprites(
  name: str, title: str, key: str, word: str, values: int, crop: bool
) -> Task:
  """Returns a task that puts the `values` values of a factor in 16 classes."""
  size = values / 16
  firsts = [math.ceil(i * size) for i in range(17)]
  return Task(
    *(name, title, 'structured', 'dsprites:2.*.*'),
    *('train[589824:590024]', 'train[663552:]', 16),
    label=functools.partial(
      labels.grouped_label, key=key, values_per_class=size
    ),
    reads=(key,),
    class_names=tuple(
      f'{word} {first} to {end - 1}'
      for first, end in itertools.pairwise(firsts)
    ),
    image=labels.black_and_white,
    crop=crop,
    flip=False,
  )


def _smallnorb(
  name: str, title: str, key: str, degrees: range, flip: bool
) -> Task:
  return Task(
    *(name, title, 'structured', 'smallnorb:2.*.*'),
    *('test[:200]', 'test[50%:]', len(degrees)),
    label=functools.partial(labels.plain_label, key=key),
    reads=(key,),
    class_names=tuple(f'{angle} degrees' for angle in degrees),
    flip=flip,
  )


_N, _SP, _ST = GROUPS
_HELD_OUT = 'validation[:200]'
# In the order of Table 9, arXiv:2010.11929.
_TASKS = (
  Task(
    *('caltech101', 'Caltech101', _N, 'caltech101:3.*.*'),
    *('train[2754:2954]', 'test', 102),
  ),
  Task(
    *('cifar100', 'CIFAR-100', _N, 'cifar100:3.*.*'),
    *('train[45000:45200]', 'test', 100),
  ),
  Task('dtd', 'DTD', _N, 'dtd:3.*.*', _HELD_OUT, 'test', 47),
  Task(
    *('flowers102', 'Flowers102', _N, 'oxford_flowers102:2.*.*'),
    *(_HELD_OUT, 'test', 102),
  ),
  Task(
    *('pets', 'Pets', _N, 'oxford_iiit_pet:3.*.*'),
    *('train[2944:3144]', 'test', 37),
    # TFDS no longer prepares version 3. By its notes, version 4 repairs images,
    # changes the address and adds boxes, none of which changes the order.
    later_builder='oxford_iiit_pet:4.*.*',
  ),
  Task('sun397', 'Sun397', _N, 'sun397/tfds:4.*.*', _HELD_OUT, 'test', 397),
  Task(
    *('svhn', 'SVHN', _N, 'svhn_cropped:3.*.*'),
    *('train[65931:66131]', 'test', 10),
  ),
  Task(
    *('camelyon', 'Camelyon', _SP, 'patch_camelyon:2.*.*'),
    *(_HELD_OUT, 'test', 2),
  ),
  Task(
    *('eurosat', 'EuroSAT', _SP, 'eurosat/rgb:2.*.*'),
    *('train[16200:16400]', 'train[21600:]', 10),
  ),
  Task(
    *('resisc45', 'Resisc45', _SP, 'resisc45:3.*.*'),
    *('train[18900:19100]', 'train[25200:]', 45),
  ),
  Task(
    *('retinopathy', 'Retinopathy', _SP),
    'diabetic_retinopathy_detection/btgraham-300:3.*.*',
    *(_HELD_OUT, 'test', 5),
  ),
  Task(
    *('clevr_count', 'Clevr-Count', _ST, 'clevr:3.*.*'),
    *('train[63000:63200]', 'validation', 8),
    label=labels.count_label,
    reads=('objects/size',),
    class_names=tuple(f'{n} objects' for n in range(3, 11)),
    crop=False,
  ),
  Task(
    *('clevr_dist', 'Clevr-Dist', _ST, 'clevr:3.*.*'),
    *('train[63000:63200]', 'validation', 6),
    label=labels.closest_object_label,
    reads=('objects/pixel_coords',),
    class_names=tuple(
      f'closest object at {near:g} to {far:g}'
      for near, far in itertools.pairwise(labels.CLEVR_EDGES)
    ),
    crop=False,
  ),
  Task(
    *('dmlab', 'DMLab', _ST, 'dmlab:2.0.1', _HELD_OUT, 'test', 6),
    crop=False,
  ),
  _dsprites(
    *('dsprites_location', 'dSpr-Loc', 'label_x_position', 'x position', 32),
    crop=False,
  ),
  _dsprites(
    *('dsprites_orientation', 'dSpr-Ori', 'label_orientation'),
    *('orientation', 40),
    crop=True,
  ),
  Task(
    *('kitti_dist', 'KITTI-Dist', _ST, 'kitti:3.1.0', _HELD_OUT, 'test', 4),
    label=labels.closest_vehicle_label,
    reads=('objects/type', 'objects/location'),
    class_names=(
      'closest vehicle within 8 m',
      'closest vehicle at 8 to 20 m',
      'closest vehicle beyond 20 m',
      'no vehicle',
    ),
    crop=False,
    # TFDS now prepares only 3.3.0. By its notes, it changes the development kit
    # and names the values of a label that is not used here.
    later_builder='kitti:3.*.*',
  ),
  _smallnorb(
    *('smallnorb_azimuth', 'sNORB-Azim', 'label_azimuth', range(0, 360, 20)),
    flip=False,
  ),
  _smallnorb(
    *('smallnorb_elevation', 'sNORB-Elev', 'label_elevation'),
    range(30, 75, 5),
    flip=True,
  ),
)
TASKS: dict[str, Task] = {task.name: task for task in _TASKS}


def find(name: str) -> Task:
  """Returns the task of that name; raises ValueError for an unknown name."""
  if name not in TASKS:
    raise ValueError(
      f'vtab:{name}: unknown task {name!r}; the tasks are {list(TASKS)}.'
    )
  return TASKS[name]


class Vtab(tfds_source.Prepared):
  """Images and labels of one task, from all splits of its data set."""

  def __init__(self, task: str, *, data_dir: str | None = None):
    """Reads the data set's description; files are opened by the first read.

    Args:
      task: one of `TASKS`.
      data_dir: the folder of the prepared data; None means TFDS's default.

    Raises:
      ValueError: the task is unknown; its data is not prepared, not stored as
        ArrayRecord, or lacks the features or classes of the task.
    """
    self.task = find(task)
    builder = _open(self.task, data_dir)
    features = builder.info.features
    read = _select(features, self.task)
    names = self.task.class_names or tuple(features['label'].names)
    if len(names) != self.task.num_classes:
      raise ValueError(
        f'vtab:{task} has {self.task.num_classes} classes, but'
        f' {builder.data_path} has {len(names)}. Prepare the original'
        f' {self.task.builder} again, or set data.data_dir to a folder with it.'
      )
    super().__init__(
      f'vtab:{task}', builder, 'image', read, self.task.label, names
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one record: its image as stored, or as the task changes it."""
    record = super().read(split, index)
    if not self.task.image:
      return record
    return dataclasses.replace(record, image=self.task.image(record.image))


def _open(task: Task, data_dir: str | None) -> tfds.core.DatasetBuilder:
  try:
    return tfds_source.open_prepared(task.builder, data_dir)
  except ValueError:
    if not task.later_builder:
      raise
  builder = tfds_source.open_prepared(task.later_builder, data_dir)
  logging.warning(
    'vtab:%s: %s, the version of the reference, is not prepared; using %s.',
    *(task.name, task.builder, builder.info.full_name),
  )
  return builder


def _select(
  features: tfds.features.FeaturesDict, task: Task
) -> dict[str, tfds.features.FeatureConnector]:
  """Returns the features that a label needs, and drops all others in sequences.

  `tfds.decode.PartialDecoding` does the same, but imports TensorFlow.
  """
  selected, inner = {}, {}
  try:
    for path in task.reads:
      key, _, part = path.partition('/')
      if part:
        inner.setdefault(key, {})[part] = features[key].feature[part]
      else:
        selected[key] = features[key]
  except (KeyError, AttributeError) as error:
    raise ValueError(
      f'vtab:{task.name} needs the feature {path!r}, which is not among'
      f' {sorted(features)}. Prepare the original {task.builder} again.'
    ) from error
  return selected | {
    key: tfds.features.Sequence(parts) for key, parts in inner.items()
  }
