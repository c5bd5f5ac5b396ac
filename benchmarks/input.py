"""Times the input pipeline: `python -m benchmarks.input --data=SPEC`.

Different numbers of worker processes of the training pipeline take turns:

  python -m benchmarks.input --data=folder:/data/imagenet --workers=0,4,16
  python -m benchmarks.input --data=tfds:imagenet2012 --batch_size=1024

`images/s` is the rate of batches when nothing else happens; batches that were
ready before the clock started do not count. How long a run waits for its
batches stands in each of its lines of progress.
"""

import collections
import functools
import itertools
import os
import time

from absl import flags

from benchmarks import report
from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.runtime import command_line, stopwatch

_DATA = flags.DEFINE_string('data', None, 'Data spec.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split of the data.')
_WORKERS = flags.DEFINE_list(
  'workers', ['0', str(os.cpu_count())], 'Numbers of worker processes.'
)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 224, 'Side in pixels.', 1)
_PREPROCESS = flags.DEFINE_string(
  'preprocess', 'inception_crop|flip', 'See vit_jax/data/ops.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Images a batch.', 1)
_BATCHES = flags.DEFINE_integer('batches', 10, 'Batches in a turn.', 1)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each number.', 1)

# Batches that nobody counts before the clock starts: more than are ever ready.
_UNCOUNTED = 4


def main():
  if wrong := [word for word in _WORKERS.value if not word.isdecimal()]:
    raise ValueError(f'--workers: expected numbers, such as 0,4, not {wrong}.')
  sharding.check_batch_size(
    '--batch_size', _BATCH_SIZE.value, sharding.make_mesh()
  )
  preprocess = ops.parse(
    _PREPROCESS.value, image_size=(_IMAGE_SIZE.value,) * 2, channels=3
  )
  view = data.View(data.open_source(_DATA.value), _SPLIT.value)
  turns = {
    f'workers={count}': functools.partial(turn, view, preprocess, int(count))
    for count in _WORKERS.value
  }
  seconds = stopwatch.take_turns(turns, _ROUNDS.value)
  ratios, results = stopwatch.ratios(seconds), {}
  for name, values in seconds.items():
    batch_sec = stopwatch.statistics(values)
    rate = _BATCH_SIZE.value / batch_sec['median']
    results[name] = {
      'batch_sec': batch_sec,
      'images_per_sec': rate,
      **ratios[name],
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


def turn(view: data.View, preprocess: ops.Preprocess, workers: int) -> float:
  """Returns the seconds of a batch when they are read as fast as possible."""
  iterator = pipeline.train_batches(
    view,
    preprocess,
    batch_size=_BATCH_SIZE.value,
    seed=0,
    num_classes=view.source.info.num_classes,
    workers=workers,
  )
  try:
    # The start of workers is not timed.
    while not iterator.ready():
      next(iterator)
    # Batches that are ready before the clock starts would count too little.
    collections.deque(itertools.islice(iterator, _UNCOUNTED), maxlen=0)
    before = time.perf_counter()
    collections.deque(itertools.islice(iterator, _BATCHES.value), maxlen=0)
    return (time.perf_counter() - before) / _BATCHES.value
  finally:
    iterator.close()


if __name__ == '__main__':
  command_line.run(main, required=('data',))
