"""Times the input pipeline: `python -m benchmarks.input`.

Different numbers of threads and worker processes of the training pipeline take
turns, and other libraries at the same work, if they are installed:

  python -m benchmarks.input                      one thread against the default
  python -m benchmarks.input --setting=threads=8 --setting=workers=2
  python -m benchmarks.input --data=folder:/data/imagenet --batch_size=1024
  python -m benchmarks.input --setting=opencv --setting=default
    --setting=timm --setting=tf.data --data=folder:/data/imagenet

`opencv` decodes and crops in one process per core, and makes no batches: it is
the ceiling of that decoder. `timm` is timm's loader, `tf.data` TensorFlow's.

Makes and reads JPEGs of ImageNet's size, unless --data names other images.
`images/s` is the rate of batches when nothing else happens; batches that were
ready before the clock started do not count. After that, as many batches are
read with a step of --step_ms after each, in which this process sleeps as if a
device computed. `stall` is how long the loop still waits for a batch, including
its transfer to the device.
"""

import pathlib
import tempfile

from absl import flags

from benchmarks import report
from benchmarks.measure import input as measure_input
from benchmarks.measure import other_inputs
from vit_jax.data.ops import decoding
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_SETTING = flags.DEFINE_multi_string(
  'setting',
  ['threads=1', 'default'],
  'threads=N, workers=N, prefetch=N with commas between them; default; or'
  f' another input: {", ".join(other_inputs.LIBRARIES)}.',
)
_DATA = flags.DEFINE_string('data', '', 'Data spec; by default made JPEGs.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split of the data.')
_IMAGES = flags.DEFINE_integer('images', 256, 'Number of JPEGs to make.', 1)
_IMAGE_SIZE = flags.DEFINE_string(
  'image_size', '224', 'In pixels: a side, or HEIGHTxWIDTH.'
)
_PREPROCESS = flags.DEFINE_string(
  'preprocess', 'inception_crop|flip', 'See vit_jax/data/ops.'
)
_JPEG_DCT = flags.DEFINE_enum(
  'jpeg_dct', 'fast', decoding.JPEG_DCTS, 'How the pipeline decodes.'
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
  image_size = command_line.parse_size('image_size', _IMAGE_SIZE.value)
  with tempfile.TemporaryDirectory() as folder:
    results = measure_input.measure(
      _DATA.value
      or measure_input.make_images(pathlib.Path(folder), _IMAGES.value),
      _SETTING.value,
      split=_SPLIT.value,
      preprocess=_PREPROCESS.value,
      image_size=image_size,
      jpeg_dct=_JPEG_DCT.value,
      batch_size=_BATCH_SIZE.value,
      batches=_BATCHES.value,
      step_ms=_STEP_MS.value,
      rounds=_ROUNDS.value,
    )
  report.publish(
    'input',
    results,
    _COLUMNS,
    setting={
      'data': _DATA.value or f'{_IMAGES.value} made JPEGs',
      'preprocess': _PREPROCESS.value,
      'image_size': list(image_size),
      'jpeg_dct': _JPEG_DCT.value,
      'batch_size': _BATCH_SIZE.value,
      'batches': _BATCHES.value,
      'step_ms': _STEP_MS.value,
      'rounds': _ROUNDS.value,
    },
    title=(
      f'Batches of {_BATCH_SIZE.value} images, {_PREPROCESS.value}; stalls'
      f' with steps of {_STEP_MS.value:g} ms'
    ),
  )


if __name__ == '__main__':
  command_line.run(main)
