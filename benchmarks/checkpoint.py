"""Times checkpoints: `python -m benchmarks.checkpoint --config=FILE`.

Trains --steps steps of a config on synthetic data in three modes. In the middle
of the steps the loop saves in the background as in training (`asynchronous`),
waits for the save to end (`waiting`), or does not save (`none`). The modes take
turns, each in an empty directory, which is removed.

  python -m benchmarks.checkpoint --config.data.batch_size=64 \\
    --config=configs/pretrain.py:ViT-B/16,imagenet2012 --directory=gs://bucket/x

`loop` is the time of all steps. `stall` is the time that the save adds to it,
compared with `none` in the same round. `call` is the time of the call of save.
`complete` is the time from the call until the checkpoint is whole, which is
checked after each step. `restore` is the time to read and verify it.
"""

import tempfile

import jax
from absl import flags
from etils import epath
from ml_collections import config_flags

from benchmarks import report
from benchmarks.measure import checkpoint
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with its argument: configs/NAME.py[:ARGUMENT].',
  lock_config=True,
)
_DIRECTORY = flags.DEFINE_string(
  'directory',
  '',
  'Where to save, to measure that file system. It must not exist. By default a'
  ' temporary directory.',
)
_STEPS = flags.DEFINE_integer('steps', 20, 'Steps in a turn.', 2)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each mode.', 1)

_COLUMNS = {
  'loop s': ('loop_sec.median', '.2f'),
  'spread': ('loop_sec.spread', '.1%'),
  'times': ('ratio', '.3f'),
  'stall s': ('stall_sec', '.2f'),
  'call s': ('call_sec.median', '.2f'),
  'complete s': ('complete_sec.median', '.2f'),
  'restore s': ('restore_sec.median', '.2f'),
  'saved MB/s': ('saved_mb_per_sec', '.0f'),
  'restored MB/s': ('restored_mb_per_sec', '.0f'),
}


def main():
  config = _CONFIG.value
  with tempfile.TemporaryDirectory() as folder:
    directory = epath.Path(_DIRECTORY.value or f'{folder}/checkpoints')
    results = checkpoint.measure(
      config, directory, steps=_STEPS.value, rounds=_ROUNDS.value
    )
  report.publish(
    'checkpoint',
    results,
    _COLUMNS,
    setting={
      'model': config.model.name,
      'optimizer': config.optimizer.name,
      'batch_size': config.data.batch_size,
      'directory': _DIRECTORY.value,
      'steps': _STEPS.value,
      'rounds': _ROUNDS.value,
    },
    title=(
      f'A save during {_STEPS.value} steps of {config.model.name}: a state of'
      f' {results["waiting"]["state_mb"]:,.0f} MB, on {jax.device_count()} x'
      f' {jax.devices()[0].device_kind}'
    ),
  )


if __name__ == '__main__':
  command_line.run(main, required=('config',))
