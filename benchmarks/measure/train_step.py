"""Compares a config's training step with variants of it."""

from collections.abc import Sequence

import ml_collections

from benchmarks.measure import peaks, settings, timing, training


def measure(
  config: ml_collections.ConfigDict,
  against: Sequence[str],
  *,
  rounds: int,
  steps: int,
  warmup: int = 1,
  peak_tflops: float | None = None,
) -> dict[str, dict]:
  """Compares a config's step with others; the arguments are the flags.

  Returns:
    See `training.figures`; the config's own step is called `config`.

  Raises:
    ValueError: see `settings.override`, `training.plain` and
      `vit_jax.training.program.Program`.
  """
  # Resolving all configs first reports errors before any compilation.
  resolved = {'config': settings.resolve(config)}
  for text in against:
    if text in resolved:
      raise ValueError(f'--against={text} is given twice.')
    changed = config
    if text not in ('plain', 'same'):
      changed = settings.override(config, text)
    resolved[text] = settings.resolve(changed)
  built = {}
  for name, setting in resolved.items():
    timing.say(f'Compiling {name} ...')
    make = training.plain if name == 'plain' else training.ours
    built[name] = make(setting)
  seconds = timing.interleave(
    {
      name: lambda step=step: step.turn(steps, warmup)
      for name, step in built.items()
    },
    rounds,
  )
  return training.figures(built, seconds, peaks.of_device(peak_tflops))
