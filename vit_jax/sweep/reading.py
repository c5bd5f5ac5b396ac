"""Reads a sweep file, and checks each run that may become due.

  python -m vit_jax.sweep.reading FILE[:ARGUMENT] [KEY=VALUE ...]

prints `{"studies": ..., "summary": ..., "steps": ...}` as JSON. The launcher
runs this in a separate process, because configs import JAX, which takes seconds
and memory.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence

import ml_collections
from absl import flags
from ml_collections import config_flags

from vit_jax.runtime import command_line, installed
from vit_jax.sweep import commands, spec
from vit_jax.sweep.spec import Run, Study, Sweep


def load(text: str) -> Sweep:
  """Calls `get_sweep` of a sweep file.

  Args:
    text: `FILE[:ARGUMENT]`, as `installed.find` takes it.

  Raises:
    ValueError: there is no such file, it defines no sweep, or it refuses its
      argument.
  """
  path, _, argument = installed.find('sweep', text).partition(':')
  module_spec = importlib.util.spec_from_file_location('sweep_file', path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, 'get_sweep'):
    raise ValueError(
      f'--sweep={text}: {path!r} defines no get_sweep(argument).'
    )
  try:
    sweep = module.get_sweep(argument or None)
  except ValueError as error:
    raise ValueError(f'--sweep={text}: {error}') from error
  spec.check(sweep)
  return sweep


def override(sweep: Sweep, words: Sequence[str]) -> Sweep:
  """Returns the sweep with `KEY=VALUE` set in all of its runs.

  Raises:
    ValueError: a word is no `KEY=VALUE`, or the runs of a study have different
      values of the key.
  """
  values = {}
  for word in words:
    key, equals, value = word.partition('=')
    if not key or not equals:
      raise ValueError(f'--set={word}: expected KEY=VALUE.')
    values[key] = value

  def changed(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(
      Run(run.name, run.config, {**run.overrides, **values}, run.labels)
      for run in runs
    )

  studies = []
  for study in sweep.studies:
    runs = list(study.all_runs())
    for key in values:
      found = {repr(run.overrides.get(key)) for run in runs}
      if len(found) > 1:
        raise ValueError(
          f'--set={key}={values[key]}: the runs of {study.name!r} differ in'
          f' this key ({", ".join(sorted(found))}), so --set cannot change it.'
        )
    finals = study.finals
    if callable(finals):
      # The default argument binds this study's own function.
      finals = lambda winner, make=finals: changed(make(winner))  # noqa: E731
    elif finals is not None:
      finals = changed(finals)
    studies.append(Study(study.name, changed(study.candidates), finals))
  return Sweep(tuple(studies), sweep.summary)


def read_config(run: Run) -> ml_collections.ConfigDict:
  """Returns a run's config with its overrides, parsed as in vit_jax.main.

  Raises:
    ValueError: the config or an override is wrong; the message names the run.
  """
  words = commands.config_flags(run)
  values = flags.FlagValues()
  config_flags.DEFINE_config_file(
    'config', lock_config=True, flag_values=values, sys_argv=['run', *words]
  )
  try:
    command_line.read_config(words)  # Names a wrong key.
    command_line.find_shipped(values)
    values(['run', *words])
  except (ValueError, TypeError, flags.Error) as error:
    raise ValueError(f'{run.name}: {error}') from None
  return values.config


def check(sweep: Sweep) -> dict[str, int]:
  """Reads every config, and checks that studies choose by held-out data only.

  Returns:
    Run name -> its `total_steps`; 0 if the config gives epochs instead.

  Raises:
    ValueError: a config or a choice is wrong; the message names the run.
  """
  # This imports JAX, which users of `load` alone do not need.
  from vit_jax.sweep import held_out

  configs: dict[str, ml_collections.ConfigDict] = {}
  # Most runs of a large sweep differ only in what needs no second check.
  checked: dict[str, ml_collections.ConfigDict] = {}

  def read(run: Run) -> ml_collections.ConfigDict:
    if run.name not in configs:
      kind = _kind(run)
      if kind not in checked:
        config = read_config(run)
        held_out.read(config, run.name)
        checked[kind] = config
      configs[run.name] = checked[kind]
    return configs[run.name]

  for study in sweep.studies:
    for candidate in study.candidates:
      config = read(candidate)
      finals: Mapping[str, ml_collections.ConfigDict] = {
        run.name: read(run) for run in study.finals_of(candidate)
      }
      held_out.check(candidate.name, config, finals)
    if not study.candidates:
      for run in study.finals_of(None):
        read(run)
  return {name: config.total_steps or 0 for name, config in configs.items()}


def _kind(run: Run) -> str:
  """Returns what runs share that differ in seeds and needed runs only."""
  overrides = {
    key: spec.OF_RUN if str(value).startswith(spec.OF_RUN) else value
    for key, value in run.overrides.items()
    if key != 'seed' or type(value) is not int or value not in range(2**32)
  }
  return repr((run.config, overrides))


def main(words: Sequence[str]) -> None:
  sweep = override(load(words[0]), words[1:])
  steps = check(sweep)
  found = {
    'studies': spec.to_json(sweep),
    'summary': sweep.summary is not None,
    'steps': steps,
  }
  json.dump(found, sys.stdout)


if __name__ == '__main__':
  command_line.run(main, arguments='FILE[:ARGUMENT] [KEY=VALUE ...]')
