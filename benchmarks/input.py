"""Times the input pipeline: `python -m benchmarks.input`.

Different numbers of threads and worker processes of the training pipeline take
turns:

  python -m benchmarks.input                      one thread against the default
  python -m benchmarks.input --setting=threads=8 --setting=workers=2
  python -m benchmarks.input --data=folder:/data/imagenet --batch_size=1024

Makes and reads JPEGs of ImageNet's size, unless --data names other images.
`images/s` is the rate of batches when nothing else happens; batches that were
ready before the clock started do not count. After that, as many batches are
read with a step of --step_ms after each, in which this process sleeps as if a
device computed. `stall` is how long the loop still waits for a batch, including
its transfer to the device.
"""

import collections
import functools
import itertools
import pathlib
import re
import tempfile
import time

import cv2
import jax
import numpy as np
from absl import flags

from benchmarks import report
from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.runtime import command_line, stopwatch

flags.adopt_module_key_flags(report)
_SETTING = flags.DEFINE_multi_string(
  'setting',
  ['threads=1', 'default'],
  'threads=N, workers=N with a comma between them; or default.',
)
_DATA = flags.DEFINE_string('data', '', 'Data spec; by default made JPEGs.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split of the data.')
_IMAGES = flags.DEFINE_integer('images', 256, 'Number of JPEGs to make.', 1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Side in pixels.', 1)
_PREPROCESS = flags.DEFINE_string(
  'preprocess', 'inception_crop|flip', 'See vit_jax/data/ops.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Images a batch.', 1)
_BATCHES = flags.DEFINE_integer('batches', 10, 'Batches in a turn.', 1)
_STEP_MS = flags.DEFINE_float('step_ms', 100.0, 'Milliseconds of a step.', 0)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each setting.', 1)

# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4
# Within this time, workers start by themselves, unless a setting says how many.
_SETTLE_SEC = 3.0

_COLUMNS = {
  'images/s': ('images_per_sec', '.0f'),
  'spread': ('batch_sec.spread', '.1%'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
  'stall ms a step': ('stall_ms.median', '.1f'),
  'largest': ('largest_stall_ms', '.1f'),
}


def main():
  sharding.check_batch_size(
    '--batch_size', _BATCH_SIZE.value, sharding.make_mesh()
  )
  preprocess = ops.parse(
    _PREPROCESS.value, image_size=(_IMAGE_SIZE.value,) * 2, channels=3
  )
  with tempfile.TemporaryDirectory() as folder:
    spec = _DATA.value or make_images(pathlib.Path(folder), _IMAGES.value)
    view, turns = data.View(data.open_source(spec), _SPLIT.value), {}
    for text in _SETTING.value:
      turns[text] = functools.partial(
        *(turn, view, preprocess, parse(text)),
        batch_size=_BATCH_SIZE.value,
        batches=_BATCHES.value,
        step_ms=_STEP_MS.value,
      )
    samples = stopwatch.take_turns(turns, _ROUNDS.value)
  figures = {
    name: {key: [sample[key] for sample in found] for key in found[0]}
    for name, found in samples.items()
  }
  ratios = stopwatch.ratios({k: v['batch_sec'] for k, v in figures.items()})
  results = {}
  for name, found in figures.items():
    batch_sec = stopwatch.statistics(found['batch_sec'])
    results[name] = {
      'batch_sec': batch_sec,
      'images_per_sec': _BATCH_SIZE.value / batch_sec['median'],
      'stall_ms': stopwatch.statistics(found['stall_ms']),
      'largest_stall_ms': max(found['largest_stall_ms']),
      **ratios[name],
    }
  report.publish(
    'input',
    results,
    _COLUMNS,
    f'Batches of {_BATCH_SIZE.value} images, {_PREPROCESS.value}; stalls with'
    f' steps of {_STEP_MS.value:g} ms',
  )


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


if __name__ == '__main__':
  command_line.run(main)
