"""The training pipeline, and other libraries' input at the same work.

Each library reads files, decodes, crops as Inception does, resizes bilinearly
and flips on all cores; `timm` and `tf.data` also make uint8 batches. Each draws
its crops by its own algorithm, with areas of 5% to 100% of the image.
"""

import collections
import importlib.util
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent import futures

import cv2
import jax
import numpy as np

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.data.ops import geometry
from vit_jax.runtime import stopwatch

PREPROCESS = 'inception_crop|flip'
_SPAWN = multiprocessing.get_context('spawn')
# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4
# Within this time, workers start by themselves, unless a setting says how many.
_SETTLE_SEC = 3.0
_AREA = (0.05, 1.0)
_ASPECT = (3 / 4, 4 / 3)


def steady(iterator: Iterator, batches: int) -> float:
  """Returns the seconds of a batch when nothing else happens.

  Batches that were ready before the clock starts would count too little.
  """
  collections.deque(itertools.islice(iterator, _UNCOUNTED), maxlen=0)
  before = time.perf_counter()
  collections.deque(itertools.islice(iterator, batches), maxlen=0)
  return (time.perf_counter() - before) / batches


def turn(
  view: data.View,
  preprocess: ops.Preprocess,
  options: dict[str, int],
  *,
  batch_size: int,
  batches: int,
  step_ms: float,
) -> dict[str, float]:
  """Reads batches as fast as possible, and then with a step after each.

  Returns:
    `batch_sec` and `stall_ms` (means over the batches), `largest_stall_ms`.
  """
  iterator = pipeline.train_batches(
    view,
    preprocess,
    batch_size=batch_size,
    seed=0,
    num_classes=view.source.info.num_classes,
    **options,
  )
  try:
    # The start of workers is not timed.
    end = time.monotonic() + (_SETTLE_SEC if 'workers' not in options else 0)
    while time.monotonic() < end or not iterator.ready():
      next(iterator)
    batch_sec = steady(iterator, batches)
    waits, mesh = [], sharding.make_mesh()
    for batch in sharding.feed(iterator, mesh, batches + 1, waits.append):
      time.sleep(step_ms / 1000)
      jax.block_until_ready(batch)
  finally:
    iterator.close()
  # The first batch was ready before the first step, so its wait is left out.
  stalls = 1000 * np.array(waits[1:])
  return {
    'batch_sec': batch_sec,
    'stall_ms': float(stalls.mean()),
    'largest_stall_ms': float(stalls.max()),
  }


def files(library: str, view: data.View, preprocess: str) -> list[str]:
  """Returns the paths of a folder's images.

  Raises:
    ValueError: the library is not installed, the data are not files, or
      `preprocess` is not PREPROCESS.
  """
  _, modules = LIBRARIES[library]
  for module in modules:
    if importlib.util.find_spec(module) is None:
      raise ValueError(
        f'--setting={library} needs the package {module}; install it, or leave'
        ' the setting out'
      )
  paths = [view.name(index) for index in range(len(view))]
  if preprocess != PREPROCESS or not os.path.isfile(paths[0]):
    raise ValueError(
      f'--setting={library} only does {PREPROCESS} of files, as in'
      f' folder:PATH, not {preprocess} of {view.source.info.spec}'
    )
  return paths


def turn_of(
  library: str, paths: list[str], *, batch_size: int, batches: int, side: int
) -> dict[str, float]:
  """Reads batches with another library, in a process of its own.

  Libraries may not get along with each other in one process.

  Returns:
    `batch_sec`, as `turn` does.
  """
  read, _ = LIBRARIES[library]
  with futures.ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
    sec = pool.submit(read, paths, batch_size, batches, side).result()
  return {'batch_sec': sec}


def _cores() -> int:
  return len(os.sched_getaffinity(0))


def opencv(paths: list[str], batch_size: int, batches: int, side: int) -> float:
  """Decodes, crops, resizes and flips in one process per core, no more.

  This is the ceiling for this decoder: no process waits for another, and no
  image leaves the process that made it.
  """
  count = batches * batch_size
  chosen = list(itertools.islice(itertools.cycle(paths), count))
  started = _SPAWN.Barrier(_cores())
  with _SPAWN.Pool(_cores(), started.wait) as pool:
    pool.starmap(_decode, [(path, side) for path in paths])  # Caches the files.
    return (
      stopwatch.seconds_of(
        lambda: pool.starmap(_decode, [(p, side) for p in chosen], 8) and None
      )
      / batches
    )


def _decode(path: str, side: int) -> None:
  cv2.setNumThreads(0)
  rng = np.random.default_rng()
  image = cv2.imread(path, cv2.IMREAD_COLOR_RGB)
  geometry.Flip()(geometry.InceptionCrop(side)(image, rng), rng)


def tf_data(
  paths: list[str], batch_size: int, batches: int, side: int
) -> float:
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
  dataset = dataset.batch(batch_size).prefetch(2)
  return steady(iter(dataset.as_numpy_iterator()), batches)


def timm(paths: list[str], batch_size: int, batches: int, side: int) -> float:
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
  images = timm.data.ImageDataset(
    os.path.commonpath(paths), transform=transform
  )
  sampler = torch.utils.data.RandomSampler(
    images, replacement=True, num_samples=2**31
  )
  loader = torch.utils.data.DataLoader(
    images,
    batch_size,
    sampler=sampler,
    num_workers=_cores(),
    collate_fn=timm.data.loader.fast_collate,
    # JAX's threads would not survive a fork.
    multiprocessing_context='spawn',
  )
  return steady(iter(loader), batches)


# Name -> function of (paths, batch_size, batches, side) that returns the
# seconds of a batch, and the packages that it needs.
LIBRARIES = {
  'opencv': (opencv, ['cv2']),
  'tf.data': (tf_data, ['tensorflow']),
  'timm': (timm, ['timm', 'torch']),
}
