"""Times the training step: `python -m benchmarks.train_step --config=FILE`.

Runs the step that `vit_jax.main` runs with this config, on this machine's
devices, with synthetic data on the devices. The steps that --against names take
turns with it; the flag may be repeated:

  --against=model.scan=true,accumulation_steps=2    other values of config keys
  --against=same                       the same step again, to see the noise

For example, on a CPU and on an accelerator:

  python -m benchmarks.train_step --against=same --steps=1 --rounds=10 \\
    --config=configs/pretrain.py:ViT-S/16,imagenet2012 \\
    --config.data.batch_size=8
  python -m benchmarks.train_step --against=model.remat=full \\
    --config=configs/pretrain.py:ViT-L/16,imagenet2012 \\
    --config.data.batch_size=512

`times` is the time per image over that of the first line; above 1, the first is
faster. MFU is the share of the device's bfloat16 peak.
"""

import functools

import jax
from absl import flags
from ml_collections import config_flags

from benchmarks import report, steps
from vit_jax.plan import analysis
from vit_jax.runtime import command_line, stopwatch

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='Config file, with its argument: configs/NAME.py[:ARGUMENT].',
  lock_config=True,
)
_AGAINST = flags.DEFINE_multi_string(
  'against', [], 'same, or KEY=VALUE[,KEY=VALUE...] of the config.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 10, 'Turns of each step.', 1)
_STEPS = flags.DEFINE_integer('steps', 10, 'Timed steps in a turn.', 1)
_WARMUP = flags.DEFINE_integer('warmup', 1, 'Untimed steps before them.', 0)


def main():
  configs = {'config': _CONFIG.value}
  for text in _AGAINST.value:
    configs[text] = _CONFIG.value
    if text != 'same':
      configs[text] = steps.changed(_CONFIG.value, text)
  # Resolving all configs first reports errors before any compilation.
  platform = jax.default_backend()
  configs = {k: analysis.resolve(c, platform) for k, c in configs.items()}
  built, turns = {}, {}
  for name, config in configs.items():
    report.say(f'Compiling {name} ...')
    built[name] = steps.build(config)
    turns[name] = functools.partial(
      built[name].turn, _STEPS.value, _WARMUP.value
    )
  seconds = stopwatch.take_turns(turns, _ROUNDS.value)
  facts = {name: step.facts for name, step in built.items()}
  config, first = configs['config'], facts['config']
  report.publish(
    'train_step',
    report.of_steps(seconds, facts),
    f'Training step of {config.model.name} at'
    f' {"x".join(map(str, config.image_size))} px, {config.model.dtype}, batch'
    f' {config.data.batch_size}, on {first["devices"]} x'
    f' {first["device_kind"]}',
    config=config.to_dict(),
    process_peak_gib=steps.peak_gib(),
  )


if __name__ == '__main__':
  command_line.run(main, required=('config',))
