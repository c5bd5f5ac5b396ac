"""Makes images, and times batches of them with and without a step."""

import collections
import itertools
import pathlib
import re
import time

import cv2
import jax
import numpy as np

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline

# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4
# Within this time, workers start by themselves, unless a setting says how many.
_SETTLE_SEC = 3.0


def parse(text: str) -> dict[str, int]:
  """Returns the arguments of `train_batches` of `workers=2,threads=4`."""
  if text == 'default':
    return {}
  parts = [
    re.fullmatch(r'(threads|workers)=(\d+)', part) for part in text.split(',')
  ]
  if not all(parts):
    raise ValueError(
      f'--setting={text}: expected threads or workers with a number, such as'
      ' threads=4, with commas between them; or default.'
    )
  return {part[1]: int(part[2]) for part in parts}


def make_images(folder: pathlib.Path, count: int) -> str:
  """Writes JPEGs of about the size and detail of photographs.

  Args:
    folder: the folder to write `train/{a,b}/NUMBER.jpg` to.
    count: the number of JPEGs.

  Returns:
    Their data spec.
  """
  rng, width, height = np.random.default_rng(0), 500, 375  # As in ImageNet.
  for index in range(count):
    # Detail at all scales, like a photograph's.
    image = np.full((height, width, 3), 128, np.float32)
    for cells in (4, 16, 64, 256):
      coarse = rng.standard_normal((cells, cells, 3), np.float32)
      image += 120 / np.sqrt(cells) * cv2.resize(coarse, (width, height))
    path = folder / 'train' / 'ab'[index % 2] / f'{index}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.clip(image, 0, 255).astype(np.uint8))
  return f'folder:{folder}'


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

  Args:
    view: the examples.
    preprocess: their preprocessing.
    options: other arguments of `train_batches`, see `parse`.
    batch_size: images a batch.
    batches: batches to time without steps, and again with steps.
    step_ms: milliseconds of a step.

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
    # Batches that are ready before the clock starts would count too little.
    collections.deque(itertools.islice(iterator, _UNCOUNTED), maxlen=0)
    before = time.perf_counter()
    collections.deque(itertools.islice(iterator, batches), maxlen=0)
    batch_sec = (time.perf_counter() - before) / batches
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
