"""The 19 tasks of VTAB-1k (arXiv:1910.04867).

Each task learns from 1,000 images: 800, and 200 for choosing settings. Splits
and labels follow github.com/google-research/task_adaptation. Which tasks crop
and flip at random follows BiT (arXiv:1912.11370, appendix). The 800 images are
those that TFDS stores first, so the versions matter. The reference has version
3 of Pets and 3.1.0 of KITTI, which TFDS no longer prepares. By TFDS's notes,
version 4 of Pets repairs images, changes the address and adds boxes; 3.3.0 of
KITTI changes the development kit and names the values of a label that is not
used here. None of this changes the order.

The source `vtab:TASK` has all splits of the data set. `TASKS[TASK]` holds the
split expressions for training and evaluation.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.vtab import labels

GROUPS = ('natural', 'specialized', 'structured')
# In the order of Table 9, arXiv:2010.11929. The columns are the first fields of
# `Task`: name, title, group, builder, val200, test, num_classes, crop and flip.
_TABLE = """
caltech101           Caltech101  natural     caltech101:3.*.*        train[2754:2954]     test           102 yes yes
cifar100             CIFAR-100   natural     cifar100:3.*.*          train[45000:45200]   test           100 yes yes
dtd                  DTD         natural     dtd:3.*.*               validation[:200]     test            47 yes yes
flowers102           Flowers102  natural     oxford_flowers102:2.*.* validation[:200]     test           102 yes yes
pets                 Pets        natural     oxford_iiit_pet:4.*.*   train[2944:3144]     test            37 yes yes
sun397               Sun397      natural     sun397/tfds:4.*.*       validation[:200]     test           397 yes yes
svhn                 SVHN        natural     svhn_cropped:3.*.*      train[65931:66131]   test            10 yes yes
camelyon             Camelyon    specialized patch_camelyon:2.*.*    validation[:200]     test             2 yes yes
eurosat              EuroSAT     specialized eurosat/rgb:2.*.*       train[16200:16400]   train[21600:]   10 yes yes
resisc45             Resisc45    specialized resisc45:3.*.*          train[18900:19100]   train[25200:]   45 yes yes
retinopathy          Retinopathy specialized diabetic_retinopathy_detection/btgraham-300:3.*.* validation[:200] test 5 yes yes
clevr_count          Clevr-Count structured  clevr:3.*.*             train[63000:63200]   validation       8 no  yes
clevr_dist           Clevr-Dist  structured  clevr:3.*.*             train[63000:63200]   validation       6 no  yes
dmlab                DMLab       structured  dmlab:2.0.1             validation[:200]     test             6 no  yes
dsprites_location    dSpr-Loc    structured  dsprites:2.*.*          train[589824:590024] train[663552:]  16 no  no
dsprites_orientation dSpr-Ori    structured  dsprites:2.*.*          train[589824:590024] train[663552:]  16 yes no
kitti_dist           KITTI-Dist  structured  kitti:3.*.*             validation[:200]     test             4 no  yes
smallnorb_azimuth    sNORB-Azim  structured  smallnorb:2.*.*         test[:200]           test[50%:]      18 yes no
smallnorb_elevation  sNORB-Elev  structured  smallnorb:2.*.*         test[:200]           test[50%:]       9 yes yes
"""  # noqa: E501


# Split expression of each task's training images while choosing settings.
TRAIN800 = 'train[:800]'


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
    crop: whether training images are cropped at random.
    flip: whether training images are mirrored at random.
    label: function of a record's features that returns its class.
    reads: the features that `label` reads -> of a sequence, its parts.
    class_names: names of the classes; if empty, those of the feature `label`.
    image: function that changes the stored image; grey becomes RGB anyway.
  """

  name: str
  title: str
  group: str
  builder: str
  val200: str
  test: str
  num_classes: int
  crop: bool
  flip: bool
  label: Callable[[Mapping[str, Any]], int] = labels.plain_label
  reads: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=lambda: {'label': ()}
  )
  class_names: tuple[str, ...] = ()
  image: Callable[[bytes], bytes | np.ndarray] | None = None

  @property
  def train800val200(self) -> str:
    """Split expression of the 1,000 images of the final training."""
    return f'{TRAIN800}+{self.val200}'


def _dsprites(key: str, word: str, values: int) -> dict[str, Any]:
  """Returns the fields of a task with a factor's `values` in 16 classes."""
  size = values / 16
  firsts = [math.ceil(i * size) for i in range(17)]
  return {
    'label': functools.partial(
      labels.grouped_label, key=key, values_per_class=size
    ),
    'reads': {key: ()},
    'class_names': tuple(
      f'{word} {first} to {end - 1}'
      for first, end in itertools.pairwise(firsts)
    ),
    'image': labels.black_and_white,
  }


def _smallnorb(key: str, degrees: range) -> dict[str, Any]:
  return {
    'label': functools.partial(labels.plain_label, key=key),
    'reads': {key: ()},
    'class_names': tuple(f'{angle} degrees' for angle in degrees),
  }


# Task -> fields of `Task` that differ from their defaults.
_OTHERS = {
  'clevr_count': {
    'label': labels.count_label,
    'reads': {'objects': ('size',)},
    'class_names': tuple(f'{n} objects' for n in range(3, 11)),
  },
  'clevr_dist': {
    'label': labels.closest_object_label,
    'reads': {'objects': ('pixel_coords',)},
    'class_names': tuple(
      f'closest object at {near:g} to {far:g}'
      for near, far in itertools.pairwise(labels.CLEVR_EDGES)
    ),
  },
  'dsprites_location': _dsprites('label_x_position', 'x position', 32),
  'dsprites_orientation': _dsprites('label_orientation', 'orientation', 40),
  'kitti_dist': {
    'label': labels.closest_vehicle_label,
    'reads': {'objects': ('type', 'location')},
    'class_names': (
      'closest vehicle within 8 m',
      'closest vehicle at 8 to 20 m',
      'closest vehicle beyond 20 m',
      'no vehicle',
    ),
  },
  'smallnorb_azimuth': _smallnorb('label_azimuth', range(0, 360, 20)),
  'smallnorb_elevation': _smallnorb('label_elevation', range(30, 75, 5)),
}


def _task(row: str) -> Task:
  *texts, classes, crop, flip = row.split()
  return Task(
    *texts,
    num_classes=int(classes),
    crop=crop == 'yes',
    flip=flip == 'yes',
    **_OTHERS.get(texts[0], {}),
  )


TASKS: dict[str, Task] = {
  task.name: task for task in map(_task, _TABLE.strip().split('\n'))
}


def titles(which: str = 'mean') -> list[str]:
  """Returns the titles of a group's tasks; 'mean' is all, a title itself."""
  return [
    task.title
    for task in TASKS.values()
    if which in ('mean', task.group, task.title)
  ]


def find(name: str) -> Task:
  """Returns the task of that name; raises ValueError for an unknown name."""
  if name not in TASKS:
    raise ValueError(
      f'vtab:{name}: unknown task {name!r}; the tasks are {list(TASKS)}.'
    )
  return TASKS[name]
