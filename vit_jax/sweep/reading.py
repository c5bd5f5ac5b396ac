"""Reads a sweep file, and checks each run that may become due."""

import importlib.util
from collections.abc import Callable, Sequence

import ml_collections
from absl import flags
from ml_collections import config_flags

from vit_jax import config as config_lib
from vit_jax.runtime import command_line, installed
from vit_jax.sweep import commands, held_out, spec
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

  def choosing(study: Study) -> Callable[[Run], tuple[Run, ...]]:
    return lambda winner: changed(study.finals_of(winner))

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
    finals = study.finals and choosing(study)
    studies.append(Study(study.name, changed(study.candidates), finals))
  return Sweep(tuple(studies))


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


def check(sweep: Sweep) -> None:
  """Reads every config, and checks that studies choose by held-out data only.

  Raises:
    ValueError: a config or a choice is wrong; the message names the run.
  """
  # Runs that differ in seeds and needed runs only need no second check.
  checked: dict[str, ml_collections.ConfigDict] = {}

  def read(run: Run) -> ml_collections.ConfigDict:
    same = {
      key: value
      for key, value in run.overrides.items()
      if key != 'seed' and not str(value).startswith(spec.OF_RUN)
    }
    kind = repr((run.config, same))
    if kind not in checked:
      config = read_config(run)
      if 'stages' in config:
        raise ValueError(
          f'{run.name}: its config has stages, which a run of a sweep must not'
          ' have.'
        )
      try:
        config_lib.validate(config)
      except ValueError as error:
        raise ValueError(f'{run.name}: {error}') from None
      checked[kind] = config
    return checked[kind]

  for study in sweep.studies:
    for run in study.all_runs():
      read(run)
    for candidate in study.candidates:
      finals = {run.name: read(run) for run in study.finals_of(candidate)}
      held_out.check(candidate.name, read(candidate), finals)
