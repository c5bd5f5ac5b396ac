"""Other libraries' input at the same work, as far as they are installed.

Each reads files, decodes, crops as Inception does, resizes bilinearly, flips,
and makes uint8 batches on all cores. Each draws its crops by its own algorithm,
with areas of 5% to 100% of the image.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import cv2
import numpy as np
import PIL.Image

from vit_jax import data
from vit_jax.data.ops import geometry

PREPROCESS = 'inception_crop|flip'
# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4
_AREA = (0.05, 1.0)
_ASPECT = (3 / 4, 4 / 3)


def files(view: data.View) -> list[str]:
  """Returns the paths of a folder's images.

  Raises:
    ValueError: the data are not files.
  """
  paths = [view.name(index) for index in range(len(view))]
  if not os.path.isfile(paths[0]):
    raise ValueError(
      f'other libraries need files, as in folder:PATH, not'
      f' {view.source.info.spec}'
    )
  return paths


def check(library: str) -> None:
  """Raises ValueError if a library is not installed."""
  for module in _MODULES[library]:
    if importlib.util.find_spec(module) is None:
      raise ValueError(
        f'--setting={library} needs the package {module}; install it, or leave'
        ' the setting out'
      )


def steady(iterator: Iterator, batches: int) -> float:
  """Returns the seconds of a batch when nothing else happens.

  Batches that were ready before the clock starts would count too little.
  """
  collections.deque(itertools.islice(iterator, _UNCOUNTED), maxlen=0)
  before = time.perf_counter()
  collections.deque(itertools.islice(iterator, batches), maxlen=0)
  return (time.perf_counter() - before) / batches


def turn(
  library: str, view: data.View, batch_size: int, batches: int, side: int
) -> dict[str, float]:
  """Reads batches with another library, in a process of its own.

  Libraries may not get along with each other in one process.

  Returns:
    `batch_sec`, as `input.turn` does.
  """
  with futures.ProcessPoolExecutor(
    1, mp_context=multiprocessing.get_context('spawn')
  ) as pool:
    sec = pool.submit(
      _turn, library, files(view), batch_size, batches, side
    ).result()
  return {'batch_sec': sec}


def _turn(library, paths, batch_size, batches, side):
  with LIBRARIES[library](paths, batch_size, side) as iterator:
    return steady(iterator, batches)


def _cores() -> int:
  return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def opencv(paths: list[str], batch_size: int, side: int) -> Iterator[Iterator]:
  """Decodes, crops, resizes and flips in one process per core, no more.

  This is the ceiling for this decoder: no process waits for another, and no
  batch leaves the process that made it.
  """
  context = multiprocessing.get_context('spawn')
  count = _cores()
  done = context.Semaphore(0)
  processes = [
    context.Process(
      target=_decode_for_ever, args=(paths[i::count], side, done), daemon=True
    )
    for i in range(count)
  ]
  for process in processes:
    process.start()
  for _ in paths:
    done.acquire()  # All processes have started, and the files are cached.
  try:
    yield iter(lambda: all(done.acquire() for _ in range(batch_size)), None)
  finally:
    for process in processes:
      process.kill()


def _decode_for_ever(paths, side, done):
  cv2.setNumThreads(0)
  crop, rng = geometry.InceptionCrop(side), np.random.default_rng(0)
  flip = geometry.Flip()
  for path in itertools.cycle(paths):
    with open(path, 'rb') as file:
      encoded = np.frombuffer(file.read(), np.uint8)
    flip(crop(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB), rng), rng)
    done.release()


@contextlib.contextmanager
def tf_data(paths: list[str], batch_size: int, side: int) -> Iterator[Iterator]:
  """TensorFlow's, which decodes only the crop, in deterministic order."""
  import tensorflow as tf

  tf.config.set_visible_devices([], 'GPU')

  def row(path):
    encoded = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
      tf.image.extract_jpeg_shape(encoded),
      tf.zeros((0, 0, 4)),
      area_range=_AREA,
      aspect_ratio_range=_ASPECT,
      min_object_covered=0,
      use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.resize(image, (side, side))
    image = tf.image.random_flip_left_right(image)
    return tf.cast(tf.round(image), tf.uint8)

  dataset = tf.data.Dataset.from_tensor_slices(paths).repeat()
  dataset = dataset.shuffle(len(paths), seed=0)
  dataset = dataset.map(row, tf.data.AUTOTUNE, deterministic=True)
  yield iter(dataset.batch(batch_size).prefetch(2).as_numpy_iterator())


@dataclasses.dataclass
class _Images:
  """A PyTorch dataset of files."""

  paths: list[str]
  transform: Callable

  def __len__(self):
    return len(self.paths)

  def __getitem__(self, index):
    with PIL.Image.open(self.paths[index]) as image:
      return self.transform(image.convert('RGB')), 0


@contextlib.contextmanager
def timm(paths: list[str], batch_size: int, side: int) -> Iterator[Iterator]:
  """timm's loader, with Pillow, in one worker process per core."""
  import timm.data
  import timm.data.loader
  import torch

  transform = timm.data.create_transform(
    side,
    is_training=True,
    use_prefetcher=True,  # uint8: a device normalises.
    scale=_AREA,
    ratio=_ASPECT,
    color_jitter=None,
    auto_augment=None,
    interpolation='bilinear',
  )
  images = _Images(paths, transform)
  loader = torch.utils.data.DataLoader(
    images,
    batch_size,
    sampler=torch.utils.data.RandomSampler(
      images, replacement=True, num_samples=2**31
    ),
    num_workers=_cores(),
    collate_fn=timm.data.loader.fast_collate,
    # JAX's threads would not survive a fork.
    multiprocessing_context='spawn',
  )
  iterator = iter(loader)
  next(iterator)
  yield iterator


# Name -> a context manager of an endless iterator of batches.
LIBRARIES = {'opencv': opencv, 'tf.data': tf_data, 'timm': timm}
_MODULES = {
  'opencv': ['cv2'],
  'tf.data': ['tensorflow'],
  'timm': ['timm', 'torch'],
}
