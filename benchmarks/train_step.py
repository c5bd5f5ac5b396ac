"""Times the training step: `python -m benchmarks.train_step --config=FILE`.

Runs the step that `vit_jax.main` runs with this config, on this machine's
devices, with synthetic data on the devices. The steps that --against names take
turns with it; the flag may be repeated:

  --against=plain                      the same model in plain Flax and optax
  --against=model.scan=true,accumulation_steps=2    other values of config keys
  --against=same                       the same step again, to see the noise

For example, on a CPU and on an accelerator:

  python -m benchmarks.train_step --against=plain --steps=1 --rounds=10 \\
    --config=configs/pretrain.py:ViT-S/16,imagenet2012 \\
    --config.data.batch_size=8
  python -m benchmarks.train_step --against=model.remat=full \\
    --config=configs/pretrain.py:ViT-L/16,imagenet2012 \\
    --config.data.batch_size=512

`times` is the time per image over that of the first line; above 1, the first is
faster. MFU is the share of the device's bfloat16 peak.
"""

import jax
from absl import flags
from ml_collections import config_flags

from benchmarks import report
from benchmarks.measure import peaks, settings, train_step
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with its argument: configs/NAME.py[:ARGUMENT].',
  lock_config=True,
)
_AGAINST = flags.DEFINE_multi_string(
  'against', [], 'plain, same, or KEY=VALUE[,KEY=VALUE...] of the config.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Turns of each step.', 1)
_STEPS = flags.DEFINE_integer('steps', 10, 'Timed steps in a turn.', 1)
_WARMUP = flags.DEFINE_integer('warmup', 1, 'Untimed steps before them.', 0)
_PEAK = flags.DEFINE_float(
  'peak_tflops', None, 'Peak of a device, if it is not known.', 0
)

_COLUMNS = {
  'ms': ('step_ms.median', '.1f'),
  'spread': ('step_ms.spread', '.1%'),
  'images/s': ('images_per_sec', '.1f'),
  '/device': ('images_per_sec_per_device', '.1f'),
  'MFU': ('mfu', '.1%'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
  'trace s': ('trace_sec', '.1f'),
  'compile s': ('compile_sec', '.1f'),
  'GiB': ('memory_gib', '.2f'),
}


def main():
  config = _CONFIG.value
  results = train_step.measure(
    config,
    _AGAINST.value,
    rounds=_ROUNDS.value,
    steps=_STEPS.value,
    warmup=_WARMUP.value,
    peak_tflops=_PEAK.value,
  )
  resolved = settings.resolve(config)
  report.publish(
    'train_step',
    results,
    _COLUMNS,
    setting={
      'model': resolved.model.name,
      'image_size': list(resolved.image_size),
      'dtype': resolved.model.dtype,
      'rounds': _ROUNDS.value,
      'steps': _STEPS.value,
      'warmup': _WARMUP.value,
      'process_peak_gib': peaks.memory_gib(),
      'config': resolved.to_dict(),
    },
    title=(
      f'Training step of {resolved.model.name} at'
      f' {"x".join(map(str, resolved.image_size))} px,'
      f' {resolved.model.dtype}, batch {resolved.data.batch_size}, on'
      f' {jax.device_count()} x {jax.devices()[0].device_kind}'
    ),
  )


if __name__ == '__main__':
  command_line.run(main, required=('config',))
