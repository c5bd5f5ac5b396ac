"""Reads a sweep file, and checks each run that may become due."""

import dataclasses
import importlib.util
import itertools
from collections.abc import Mapping, Sequence

import ml_collections

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

  for study, (key, value) in itertools.product(sweep.studies, values.items()):
    found = {repr(run.overrides.get(key)) for run in study.all_runs()}
    if len(found) > 1:
      raise ValueError(
        f'--set={key}={value}: the runs of {study.name!r} differ in this key'
        f' ({", ".join(sorted(found))}), so --set cannot change it.'
      )
  return Sweep([_with(study, values) for study in sweep.studies])


def _with(study: Study, values: Mapping[str, str]) -> Study:
  def changed(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(
      dataclasses.replace(run, overrides={**run.overrides, **values})
      for run in runs
    )

  finals = study.finals and (lambda winner: changed(study.finals_of(winner)))
  return Study(study.name, changed(study.candidates), finals)


def read_config(run: Run) -> ml_collections.ConfigDict:
  """Returns a run's config with its overrides, parsed as in vit_jax.main.

  Raises:
    ValueError: the config or an override is wrong; the message names the run.
  """
  try:
    return command_line.load_config(run.config, *commands.config_flags(run)[1:])
  except ValueError as error:
    raise ValueError(f'{run.name}: {error}') from None


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
