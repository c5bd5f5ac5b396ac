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

import functools
import pathlib
import tempfile

from absl import flags

from benchmarks import inputs, report
from vit_jax import data, sharding
from vit_jax.data import ops
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
    spec = _DATA.value or inputs.make_images(
      pathlib.Path(folder), _IMAGES.value
    )
    view, turns = data.View(data.open_source(spec), _SPLIT.value), {}
    for text in _SETTING.value:
      turns[text] = functools.partial(
        *(inputs.turn, view, preprocess, inputs.parse(text)),
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


if __name__ == '__main__':
  command_line.run(main)
