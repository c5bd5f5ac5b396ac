"""Times launches with cold and warm caches: `python -m benchmarks.start_up`.

Each turn launches `python -m vit_jax.main` as a user does, on rendered scenes.
It waits until the first step is dispatched and then done, and kills the
process. A cold turn starts with an empty compilation cache. The warm turn after
it uses the same cache. The times include the start of Python, imports and data.

  python -m benchmarks.start_up                               ViT-B/16, batch 8
  python -m benchmarks.start_up --model=ViT-L/16 --batch_size=256 --rounds=3
  python -m benchmarks.start_up --flag=--config.model.scan=true

`times` is the time until the first step is dispatched, over a cold start's.
"""

from absl import flags

from benchmarks import report
from benchmarks.measure import start_up, timing
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_MODEL = flags.DEFINE_string('model', 'ViT-B/16', 'Name of the model.')
_IMAGE_SIZE = flags.DEFINE_string(
  'image_size', '224', 'In pixels: a side, or HEIGHTxWIDTH.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 8, 'Images a step.', 1)
_FLAG = flags.DEFINE_multi_string(
  'flag', [], 'Another flag for vit_jax.main, such as --config.seed=1.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Launches of each kind.', 1)
_TIMEOUT = flags.DEFINE_float('timeout', 1800.0, 'Seconds for a launch.', 1)

_COLUMNS = {
  'to weights s': ('weights_sec.median', '.1f'),
  'to dispatch s': ('dispatched_sec.median', '.1f'),
  'spread': ('dispatched_sec.spread', '.1%'),
  'to step done s': ('done_sec.median', '.1f'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
}


def main():
  image_size = command_line.parse_size('image_size', _IMAGE_SIZE.value)
  arguments = [
    f'--config=configs/pretrain.py:{_MODEL.value},shapes',
    f'--config.image_size={image_size}',
    f'--config.data.batch_size={_BATCH_SIZE.value}',
    *_FLAG.value,
  ]
  results = start_up.measure(
    arguments, rounds=_ROUNDS.value, timeout=_TIMEOUT.value
  )
  report.publish(
    'start_up',
    results,
    _COLUMNS,
    setting={
      'model': _MODEL.value,
      'image_size': list(image_size),
      'batch_size': _BATCH_SIZE.value,
      'arguments': arguments,
      'rounds': _ROUNDS.value,
    },
    title=(
      f'Launch to first step of {_MODEL.value}, batch {_BATCH_SIZE.value}'
    ),
    # The launched processes use the devices.
    environment=timing.environment(devices=False),
  )


if __name__ == '__main__':
  command_line.run(main)
