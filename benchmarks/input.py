"""Times the input pipeline: `python -m benchmarks.input`.

Different numbers of threads and worker processes of the training pipeline take
turns:

  python -m benchmarks.input                      one thread against the default
  python -m benchmarks.input --setting=threads=8 --setting=workers=2
  python -m benchmarks.input --data=folder:/data/imagenet --batch_size=1024

Makes and reads JPEGs of ImageNet's size, unless --data names other images.
`images/s` is the rate of batches when nothing else happens; batches that were
ready before the clock started do not count. How long a run waits for its
batches stands in each of its lines of progress.
"""

import collections
import functools
import itertools
import pathlib
import re
import tempfile
import time

import cv2
import numpy as np
from absl import flags

from benchmarks import report
from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.runtime import command_line, stopwatch

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
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each setting.', 1)

# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4
# Within this time, workers start by themselves, unless a setting says how many.
_SETTLE_SEC = 3.0


def main():
  sharding.check_batch_size(
    '--batch_size', _BATCH_SIZE.value, sharding.make_mesh()
  )
  preprocess = ops.parse(
    _PREPROCESS.value, image_size=(_IMAGE_SIZE.value,) * 2, channels=3
  )
  settings = {text: parse(text) for text in _SETTING.value}
  with tempfile.TemporaryDirectory() as folder:
    spec = _DATA.value or make_images(pathlib.Path(folder), _IMAGES.value)
    view = data.View(data.open_source(spec), _SPLIT.value)
    seconds = stopwatch.take_turns(
      {
        text: functools.partial(turn, view, preprocess, options)
        for text, options in settings.items()
      },
      _ROUNDS.value,
    )
  ratios, results = stopwatch.ratios(seconds), {}
  for text, values in seconds.items():
    batch_sec = stopwatch.statistics(values)
    rate = _BATCH_SIZE.value / batch_sec['median']
    results[text] = {
      'batch_sec': batch_sec,
      'images_per_sec': rate,
      **ratios[text],
    }
  report.publish(
    'input',
    results,
    {
      'images/s': ('images_per_sec', '.0f'),
      'spread': ('batch_sec.spread', '.1%'),
      'times': ('ratio', '.3f'),
      'paired': ('paired_ratio', '.3f'),
    },
    f'Batches of {_BATCH_SIZE.value} images, {_PREPROCESS.value}',
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
  view: data.View, preprocess: ops.Preprocess, options: dict[str, int]
) -> float:
  """Returns the seconds of a batch when they are read as fast as possible.

  Args:
    view: the examples.
    preprocess: their preprocessing.
    options: other arguments of `train_batches`, see `parse`.
  """
  iterator = pipeline.train_batches(
    view,
    preprocess,
    batch_size=_BATCH_SIZE.value,
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
    collections.deque(itertools.islice(iterator, _BATCHES.value), maxlen=0)
    return (time.perf_counter() - before) / _BATCHES.value
  finally:
    iterator.close()


if __name__ == '__main__':
  command_line.run(main)
