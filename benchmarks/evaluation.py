"""Times evaluation: `python -m benchmarks.evaluation --config=FILE`.

Runs one evaluation of the config with the evaluator that training uses, input
included, and with fresh weights. Other values of the config's keys take turns:

  python -m benchmarks.evaluation \\
    --config='configs/pretrain.py:ViT-B/16,shapes,eval=test[:512]' \\
    --config.data.batch_size=32 \\
    --against=evals.validation.batch_size=128 --against=model.dtype=bfloat16

`input alone` is how fast the same images are read without a model. If it is not
faster than `images/s`, the devices wait for input. `times` is the time per
image over that of the first line.
"""

import jax
from absl import flags
from ml_collections import config_flags

from benchmarks import report
from benchmarks.measure import evaluation
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with its argument: configs/NAME.py[:ARGUMENT].',
  lock_config=True,
)
_EVALUATION = flags.DEFINE_string(
  'evaluation', '', "Name in the config's evals; not needed if it has only one."
)
_AGAINST = flags.DEFINE_multi_string(
  'against', [], 'KEY=VALUE[,KEY=VALUE...] of the config, or same.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Turns of each setting.', 1)

_COLUMNS = {
  'batch': ('batch_size', ',d'),
  'images/s': ('images_per_sec', '.1f'),
  'spread': ('seconds.spread', '.1%'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
  'input alone': ('input_images_per_sec', '.1f'),
  'first run s': ('first_run_sec', '.1f'),
}


def main():
  config = _CONFIG.value
  results = evaluation.measure(
    config,
    _AGAINST.value,
    rounds=_ROUNDS.value,
    evaluation=_EVALUATION.value,
  )
  report.publish(
    'evaluation',
    results,
    _COLUMNS,
    setting={
      'model': config.model.name,
      'data': config.data.dataset,
      'image_size': list(config.image_size),
      'rounds': _ROUNDS.value,
    },
    title=(
      f'Evaluation of {config.model.name} on'
      f' {results["config"]["images"]:,} images of {config.data.dataset},'
      f' on {jax.device_count()} x {jax.devices()[0].device_kind}'
    ),
  )


if __name__ == '__main__':
  command_line.run(main, required=('config',))
