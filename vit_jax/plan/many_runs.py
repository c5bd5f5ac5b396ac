"""Plans several runs on several slices, one after another, for the command."""

import dataclasses
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections

from vit_jax.plan import (
  as_json,
  auto,
  compilers,
  compiling,
  devices,
  gpus,
  measure,
  one_run,
  render,
)
from vit_jax.runtime import command_line, installed

Say = Callable[[str], None]

# After this time the command reports how long the remaining plans will take.
_SLOW_SECONDS = 10

# Table 6 of arXiv:2010.11929: models and epochs, all on JFT-300M.
TABLE_6 = (
  ('ViT-B/32', 7),
  ('ViT-B/16', 7),
  ('ViT-L/32', 7),
  ('ViT-L/16', 7),
  ('ViT-L/16', 14),
  ('ViT-H/14', 14),
  ('BiT-R50x1', 7),
  ('BiT-R50x2', 7),
  ('BiT-R101x1', 7),
  ('BiT-R152x1', 7),
  ('BiT-R152x2', 7),
  ('BiT-R152x2', 14),
  ('BiT-R200x3', 14),
  ('R50+ViT-B/32', 7),
  ('R50+ViT-B/16', 7),
  ('R50+ViT-L/32', 7),
  ('R50+ViT-L/16', 7),
  ('R50+ViT-L/16', 14),
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The command's flags; its help explains them."""

  correction: float = as_json.CORRECTION
  search: bool = True
  max_tries: int = 6
  max_seconds: float = 3600.0
  steps: int = 10

  def __post_init__(self):
    if not 0 < self.correction < math.inf:
      raise ValueError(
        f'--correction={self.correction} must be a number above 0.'
      )

  @property
  def effort(self) -> one_run.Effort:
    return one_run.Effort(self.search, self.max_tries, self.max_seconds)


def table6() -> list[str]:
  """Returns the names of Table 6's runs."""
  return [
    f'configs/pretrain.py:{model},jft300m,epochs={epochs}'
    for model, epochs in TABLE_6
  ]


def with_config(words: Sequence[str]) -> list[str]:
  """Adds `--config` to a command line that has overrides but no `--config`.

  Flag parsing accepts overrides (`--config.KEY=VALUE`) only with `--config`.
  They apply to all configs, so the first of --also or --table6 can be it.

  Args:
    words: the command line without the program's name.

  Raises:
    ValueError: there is no such file.
  """
  words = list(words)
  flags = [word.replace('--', '-', 1) for word in words]
  if not any(flag.startswith('-config.') for flag in flags):
    return words
  if any(re.match('-config(=|$)', flag) for flag in flags):
    return words
  names = [flag[6:] for flag in flags if flag.startswith('-also=')]
  names += [
    word for flag, word in itertools.pairwise(words) if flag == '--also'
  ]
  if {'-table6', '-table6=true'} & set(flags):
    names += table6()
  # If no file exists, the error names --also, which is what the user wrote.
  found = [name for name in names if installed.exists('also', name)]
  if names and not found:
    installed.find('also', names[0])
  return [f'--config={name}' for name in found[:1]] + words


def expand(
  named: Mapping[str, ml_collections.ConfigDict],
  names: Sequence[str],
  overrides: Mapping[str, Any],
) -> list[one_run.Run]:
  """Returns the runs to plan; a config with stages gives one run a stage.

  Args:
    named: `FILE:ARGUMENT` -> config, with overrides applied.
    names: `FILE:ARGUMENT` of further configs to load.
    overrides: config key -> value, applied to the further configs.

  Raises:
    ValueError: there is no config, or one cannot be loaded or overridden.
  """
  loaded = dict(named)
  for name in names:
    try:
      config = command_line.read_config([f'--config={name}'])
    except ValueError as error:
      flag = f'--also={name}'
      raise ValueError(
        str(error).replace(f'--config={name}', flag, 1)
      ) from error
    try:
      config.update_from_flattened_dict(overrides)
    except (KeyError, AttributeError, TypeError) as error:
      raise ValueError(
        f'The overrides {dict(overrides)} do not suit {name}: {error}'
      ) from error
    loaded.setdefault(name, config)
  if not loaded:
    raise ValueError(
      '--config is missing: a config file, with its argument, such as'
      ' configs/pretrain.py:ViT-B/16,imagenet2012.'
    )
  runs = []
  for name, config in loaded.items():
    if 'stages' not in config:
      runs.append(one_run.Run(name, config))
      continue
    runs += [
      one_run.Run(f'{name} {stage}', config.stages[stage])
      for stage in config.order
    ]
  return runs


def plan_all(
  runs: Sequence[one_run.Run],
  topologies: Sequence[str],
  options: Options,
  say: Say,
) -> tuple[list[dict[str, Any]], str]:
  """Plans each run on each slice.

  Args:
    runs: see `expand`.
    topologies: as in the command's help; if empty, the plans have only the
      figures that need no device.
    options: the flags.
    say: is called with progress messages.

  Returns:
    The figures (see `as_json.figures`) and advice to the user, or ''.

  Raises:
    ValueError: a slice is unknown, or a config is wrong or does not suit the
      number of devices. Raised before anything is compiled.
  """
  # A slice has two names; plan it once even if both are given.
  targets = list(dict.fromkeys(_target(text) for text in topologies))
  local = [text for text in topologies if text in devices.LOCAL]
  if local and len(topologies) > 1:
    raise ValueError(
      f'--topology={",".join(topologies)}: {local[0]} measures this machine and'
      ' cannot be combined with slices. Run the command once for each.'
    )
  if local:
    measure.check_platform(local[0])
  else:
    devices.leave_hardware_alone()
  note = ''
  if not targets:
    targets = [None]
    note = 'Add --topology=SLICE, such as v3:16x16, to see memory and time.'
  elif not local and any(map(_lacks_libtpu, targets)):
    note = devices.INSTALL
  # Check all configs first: the user sees an error before minutes of compiling.
  jobs = [(run, target) for run in runs for target in targets]
  for run, target in jobs:
    if isinstance(target, devices.AnyTarget) and not _lacks_libtpu(target):
      one_run.describe({}, run, target)
    elif isinstance(target, devices.Target):
      devices.check(one_run.analyse(run).config, target)
    else:
      one_run.analyse(run)
  if targets != [None] and not local:
    compilers.warn(
      {_platform(target) for target in targets if not _lacks_libtpu(target)}
    )
  reports = []
  start = time.monotonic()
  for index, (run, target) in enumerate(jobs):
    elapsed = time.monotonic() - start
    if elapsed > _SLOW_SECONDS and index:
      left = elapsed / index * (len(jobs) - index)
      say(f'{index} of {len(jobs)} done; about {left / 60:.0f} minutes left.')
    try:
      reports.append(_plan(run, target, options, say))
    except jax.errors.JaxRuntimeError as error:
      reports.append(_failed(run, target, error))
    except ValueError as error:
      if len(jobs) == 1:
        raise
      # Keep the other plans, which took minutes.
      reports.append(_failed(run, target, error))
  return reports, note


def _failed(run, target, error: Exception) -> dict[str, Any]:
  """Returns the report of a run that could not be planned."""
  message = compiling.one_line(error)
  known = one_run.analyse(run, _platform(target))
  known = dataclasses.replace(known, error=message)
  if isinstance(target, devices.AnyTarget):
    known = dataclasses.replace(known, target=target)
  return as_json.figures(known)


def check(reports: Sequence[dict[str, Any]]) -> None:
  """Raises ValueError if a run could not be planned; call it at the end."""
  failed = [one for one in reports if one['error']]
  if failed:
    raise ValueError(
      f'{len(failed)} of {len(reports)} could not be planned. The first was'
      f' {failed[0]["config"]}: {failed[0]["error"]}'
    )


def _platform(target: devices.AnyTarget | str | None) -> str:
  if isinstance(target, str):
    gpu = target.partition(':')[2] in gpus.GPUS
    return 'gpu' if gpu else 'tpu'
  return target.platform if target else 'tpu'


def _lacks_libtpu(target: devices.AnyTarget | str | None) -> bool:
  """Returns whether a plan of this target has no memory and time.

  That goes for TPUs. Without the compiler for GPUs, a plan for them fails.
  """
  return _platform(target) == 'tpu' and not devices.have_compiler()


def _target(text: str) -> devices.AnyTarget | str:
  """Returns the devices; `text` itself if it is `local`, `auto` or similar."""
  if text in devices.LOCAL:
    return text
  kind, _, generation = text.partition(':')
  if kind == 'auto':
    devices.of_generation(generation or auto.GENERATION)
    return text
  return devices.parse(text)


def _plan(run, target, options: Options, say: Say) -> dict[str, Any]:
  if target in devices.LOCAL:
    return measure.figures(run, options.steps, say)
  if isinstance(target, str):
    generation = target.partition(':')[2] or auto.GENERATION
    if _lacks_libtpu(target):
      plan = one_run.analyse(run)
    else:
      plan = auto.smallest(run, generation, options.effort, say)
  elif target is None:
    plan = one_run.analyse(run)
  elif not _lacks_libtpu(target):
    plan = one_run.plan(run, target, options.effort, say)
  else:
    plan = dataclasses.replace(one_run.analyse(run), target=target)
  return as_json.figures(plan, options.correction)


def render_all(reports: Sequence[dict[str, Any]], note: str) -> str:
  """Returns text for people: a page for one run, a table for several."""
  if len(reports) == 1:
    return render.page(reports[0], note)
  return render.table(reports, note)


def to_json(reports: Sequence[dict[str, Any]]) -> str:
  """Returns one line of JSON: an object, or a list of several objects."""
  return json.dumps(list(reports) if len(reports) > 1 else reports[0])
