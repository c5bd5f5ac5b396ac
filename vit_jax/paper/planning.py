"""What `vit_jax.reproduce --plan` prints: runs, their cost and their progress.

Core-days are those in `WORKDIR/plan.json`, which holds what several
`python -m vit_jax.plan --json` have printed.
"""

import functools
import json
import pathlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax.paper import cost
from vit_jax.paper.page.texts import DASH, number, plural
from vit_jax.paper.runs import Node, Pretraining
from vit_jax.plan import analysis
from vit_jax.runtime import text_table
from vit_jax.sweep import bring_to_end, reading, schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep

FILE = 'plan.json'
# The paper's unit is the core of a TPUv3.
_GENERATION = 'v3:'
# Config keys, and beginnings of keys, that change neither the operations of a
# step nor its time. Without the location of the data, the config has its size.
_FREE = (
  *('seed', 'schedule.peak', 'init.checkpoint', 'data.dataset'),
  *('data.data_dir', 'evals.', 'log.', 'checkpoint.', 'guard.', 'profile.'),
)


def text(
  nodes: Sequence[Node], sweep: Sweep, where: Folders, *, scale: str
) -> str:
  """Returns a line for each pre-training, one for fine-tuning, and the sums.

  Args:
    nodes: of the items, see `runs.with_needs`.
    sweep: their runs.
    where: the folders of the runs.
    scale: one of `runs.SCALES`.

  Raises:
    ValueError: the file of plans is damaged.
  """
  finished = bring_to_end.read_finished(sweep, where)
  runs = schedule.expected(sweep, finished)
  first, papers_own = pretraining_runs(nodes, sweep), scale == 'paper'
  days = core_days(first, where.local) if papers_own else {}
  sizes = {name: _settings(run) for name, run in runs.items()}
  steps = {name: _config(*size).total_steps for name, size in sizes.items()}
  # Table 6 counts pre-trainings with the heads of the paper.
  known = {first[n.name].name: n for n in nodes if n.name in first}
  compute = {
    name: cost.exaflops(known[name])
    if papers_own and name in known
    else _teraflops(*size) / (1e6 if papers_own else 1)
    for name, size in sizes.items()
  }
  hours = {name: cost.device_hours(finished.get(name, {})) for name in runs}

  def row(label: str, names: Sequence[str], days: Iterable[float | None]):
    return (
      label,
      number(sum(compute[name] for name in names), 1),
      number(sum(steps[name] for name in names), 0),
      _sum(days, 1),
      _sum([hours[name] for name in names], 2),
      _state(names, where, finished),
    )

  rows = [('Runs', cost.UNITS[scale], 'Steps', 'Core-days', 'Device hours', '')]
  rows += [row(n, [run.name], [days.get(n)]) for n, run in first.items()]
  if tuned := sorted({*runs} - {run.name for run in first.values()}):
    rows.append(row(f'{plural(len(tuned), "run")} of fine-tuning', tuned, ()))
  rows.append(row(plural(len(runs), 'run'), [*runs], days.values()))
  # Columns without a value are left out.
  columns = [c for c in zip(*rows, strict=True) if {*c[1:]} != {DASH}]
  *body, last = text_table.aligned([*zip(*columns, strict=True)]).splitlines()
  lines = [*body, '-' * max(map(len, body)), last]
  if spent := {name: found for name, found in hours.items() if found}:
    done = sum(compute[name] for name in spent)
    left = (sum(compute.values()) - done) * sum(spent.values()) / done
    lines.append(
      f'At the speed of the finished runs, {number(left, 2)} device hours are'
      ' left.'
    )
  if papers_own:
    others = [run for name, run in first.items() if name not in days]
    lines.append(_about(others, where.local))
  return '\n'.join(lines)


def _sum(values: Iterable[float | None], digits: int) -> str:
  known = [value for value in values if value is not None]
  return number(sum(known), digits) if known else DASH


def _state(
  names: Sequence[str], where: Folders, finished: schedule.Finished
) -> str:
  done = sum(name in finished for name in names)
  if len(names) > 1:
    return f'{done:,} of {len(names):,} finished'
  [name] = names
  begun = 'begun' if where.workdir(name).exists() else 'not begun'
  return 'finished' if done else begun


def _about(unplanned: Iterable[Run], folder: pathlib.Path) -> str:
  """Returns where core-days come from, and what would plan other runs."""
  path = folder / FILE
  found = (
    f'Core-days are those of TPUv3 in {path}, without evaluations and restarts.'
    f' {analysis.RESTS_ON}'
  )
  configs = dict.fromkeys(
    config for config, changed in map(_settings, unplanned) if not changed
  )
  if not configs:
    return found
  # One process for each, so that a failure loses no other plan.
  return (
    f'{found} To add them for {plural(len(configs), "config")}, which takes'
    f' minutes each:\nmkdir -p {shlex.quote(str(folder))}; for config in'
    f' {shlex.join(configs)}; do python -m vit_jax.plan --topology=v3:16x16'
    f' --json --config="$config"; done >> {shlex.quote(str(path))}'
  )


def pretraining_runs(nodes: Iterable[Node], sweep: Sweep) -> dict[str, Run]:
  """Returns the run of each node that is a pre-training, by the node's name."""
  names = {node.name for node in nodes if isinstance(node, Pretraining)}
  return {
    study.name: study.finals_of(None)[0]
    for study in sweep.studies
    if study.name in names
  }


def _settings(run: Run) -> tuple[str, tuple]:
  """Returns the config and the overrides that a step's time depends on."""
  path, colon, argument = run.config.partition(':')
  words = [w for w in argument.split(',') if not w.startswith('few_shot=')]
  overrides = {
    key: value
    for key, value in run.overrides.items()
    if not key.startswith(_FREE)
  }
  return path + colon + ','.join(words), (*overrides.items(),)


# Cached: reading and counting are slow, and many runs are alike.
@functools.cache
def _config(config: str, overrides: tuple) -> ml_collections.ConfigDict:
  """Returns a config with the number of its steps; see `_settings`."""
  found = reading.read_config(Run('', config, dict(overrides)))
  return found if found.total_steps else analysis.resolve(found, 'tpu')


@functools.cache
def _teraflops(config: str, overrides: tuple) -> float:
  """Returns a run's operations; its head counts for one class."""
  sized = _config(config, overrides).to_dict() | {'num_classes': 1}
  return cost.teraflops(sized)


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the plans of a folder, [] if there are none.

  Raises:
    ValueError: the file holds something else.
  """
  path = folder / FILE
  lines, plans = path.read_text().splitlines() if path.exists() else (), []
  try:
    for found in map(json.loads, lines):
      plans += found if isinstance(found, list) else [found]
    if not all('config' in plan for plan in plans):
      raise ValueError('a plan has no config')
  except (ValueError, TypeError) as error:
    raise ValueError(
      f'{path} must hold objects with a "config", as vit_jax.plan --json'
      f' prints them ({error}). Move it away, and plan again.'
    ) from error
  return plans


def core_days(
  runs: Mapping[str, Run], folder: pathlib.Path
) -> dict[str, float]:
  """Returns name -> core-days, of the runs that have a plan for TPUv3.

  They stand beside the paper's, so they are those that no speed of the paper's
  own runs corrects. The last plan of a config counts; if the run does not fit,
  its fix.

  Args:
    runs: see `pretraining_runs`.
    folder: of the file of plans.

  Raises:
    ValueError: the file is damaged.
  """
  known = {}
  for plan in read(folder):
    fits = plan if plan.get('fits') is not False else plan.get('fix') or {}
    on_v3 = (plan.get('topology') or '').startswith(_GENERATION)
    # Files of earlier versions also have plans of other settings.
    other = plan.get('error') or plan.get('overrides')
    if on_v3 and not other and fits.get('core_days_raw'):
      known[plan['config']] = fits['core_days_raw']
  found = {}
  for name, run in runs.items():
    config, overrides = _settings(run)
    if config in known and not overrides:
      found[name] = known[config]
  return found
