"""The cost of pre-training runs on TPUs, as the TPU's compiler estimates it.

`WORKDIR/plan.json` is a list of the objects that `python -m vit_jax.plan
--json` prints, each with the `overrides` of its config.
`vit_jax.reproduce --plan --topology=v3:16x16` adds them one by one, so that it
continues where it was stopped. You may add objects of `vit_jax.plan` yourself.
"""

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vit_jax.paper.runs import Node, Pretraining
from vit_jax.runtime import json_text, printable
from vit_jax.sweep import commands, state
from vit_jax.sweep.spec import Run, Sweep
from vit_jax.workdir import files

FILE = 'plan.json'
# Seconds to wait for another process that writes the file.
_WAIT = 60.0

# The paper's unit is the core of a TPUv3.
_GENERATION = 'v3:'
# Config keys that a step's time does not depend on. Without the location of the
# data, the planner takes their size from the config.
_WITHOUT = ('seed', 'data.dataset', 'data.data_dir')
_WITHOUT_SECTIONS = ('evals.', 'log.', 'checkpoint.', 'guard.', 'profile.')

Plan = Mapping[str, Any]
# Takes the flags of vit_jax.plan, returns its JSON.
Planner = Callable[[Sequence[str]], dict[str, Any]]


def pretraining_runs(nodes: Iterable[Node], sweep: Sweep) -> dict[str, Run]:
  """Returns the run of each node that is a pre-training, by the node's name."""
  names = {node.name for node in nodes if isinstance(node, Pretraining)}
  return {
    study.name: study.finals_of(None)[0]
    for study in sweep.studies
    if study.name in names
  }


def planned(run: Run) -> Run:
  """Returns a run without the settings that its steps' time does not depend on.

  So runs that differ only in their seed are planned once.
  """
  path, colon, argument = run.config.partition(':')
  words = [
    word for word in argument.split(',') if not word.startswith('few_shot=')
  ]
  overrides = {
    key: value
    for key, value in run.overrides.items()
    if key not in _WITHOUT and not key.startswith(_WITHOUT_SECTIONS)
  }
  return Run(run.name, path + colon + ','.join(words), overrides)


def read(directory: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the plans of a directory, [] if there are none.

  Raises:
    ValueError: the file is not a list of plans.
  """
  path = directory / FILE
  if not path.exists():
    return []
  try:
    plans = json_text.loads(path.read_text())
    plans = plans if isinstance(plans, list) else [plans]
    if not all('config' in plan for plan in plans):
      raise ValueError('a plan has no config')
  except (ValueError, TypeError) as error:
    raise ValueError(
      f'{path} must be a list of objects with a "config", as vit_jax.plan'
      f' --json prints them ({error}). Move it away, and plan again.'
    ) from error
  return plans


def find(plans: Iterable[Plan], run: Run, topology: str = '') -> Plan | None:
  """Returns the newest plan of a run, without those whose compilation failed.

  Args:
    plans: see `read`.
    run: as in the sweep.
    topology: a slice such as `v3:16x16`; '': any slice of TPUv3.
  """
  wanted = _key(planned(run))
  newest = None
  for plan in plans:
    where = plan.get('topology') or ''
    if plan.get('error'):
      continue
    if not (where == topology if topology else where.startswith(_GENERATION)):
      continue
    if (plan['config'], plan.get('overrides') or {}) == wanted:
      newest = plan
  return newest


def days(plan: Plan) -> float | None:
  """Returns core-days of a plan, or of its fix if it does not fit, or None.

  They stand beside the paper's, so they are those that no speed of the paper's
  own runs corrects.
  """
  if plan.get('fits') is False:
    plan = plan.get('fix') or {}
  return plan.get('core_days_raw')


def with_days(
  plans: Sequence[Plan], runs: Mapping[str, Run], topology: str = ''
) -> dict[str, Plan]:
  """Returns the plans of the runs whose core-days are known, by name.

  Args:
    plans: see `read`.
    runs: see `pretraining_runs`.
    topology: see `find`.
  """
  found = {name: find(plans, run, topology) for name, run in runs.items()}
  return {
    name: plan
    for name, plan in found.items()
    if plan and days(plan) is not None
  }


def compile_missing(
  runs: Iterable[Run],
  directory: pathlib.Path,
  topology: str,
  say: Callable[[str], None],
  planner: Planner | None = None,
) -> str:
  """Plans the runs that have no plan for a slice, one after another.

  Each plan is written at once, so the same call continues after a stop.

  Args:
    runs: see `pretraining_runs`.
    directory: of `plan.json`.
    topology: one slice, such as `v3:16x16` or `v3-512`.
    say: receives lines on the progress.
    planner: None: `vit_jax.plan`, in a separate process for each run.

  Returns:
    The slice, as plans name it.

  Raises:
    ValueError: the slice is unknown or a GPU; a plan is missing and there is no
      TPU compiler; or some runs could not be planned: raised after all others
      are.
  """
  # Imported late: it imports JAX.
  from vit_jax.plan import devices

  target = devices.parse(topology)
  if target.platform != 'tpu':
    raise ValueError(
      f"--topology={topology}: the paper's runs are planned for TPU slices,"
      ' such as v3:16x16.'
    )
  topology = str(target)
  plans = read(directory)
  missing = {}
  for run in runs:
    if find(plans, run, topology) is None:
      run = planned(run)
      missing.setdefault(json.dumps(_key(run), sort_keys=True), run)
  if missing and planner is None and not devices.have_compiler():
    raise ValueError(f'--topology={topology}: {devices.INSTALL}')
  planner = planner or plan
  directory.mkdir(parents=True, exist_ok=True)
  failed, start = [], time.monotonic()
  for index, run in enumerate(missing.values()):
    left = ''
    if index:
      seconds = (time.monotonic() - start) / index * (len(missing) - index)
      left = f', about {printable.duration(seconds)} left'
    say(f'{index} of {len(missing)} planned{left}: {run.config}')
    words = [*commands.config_flags(run), f'--topology={topology}', '--json']
    try:
      made = planner(words)
    except ValueError as error:
      failed.append(f'{run.config}: {error}')
      say(f'failed: {error}')
      continue
    # Another process may plan other items here.
    with state.lock(directory, 'plan.lock', holder='planner', wait=_WAIT):
      plans = [*read(directory), {**made, 'overrides': _key(run)[1]}]
      with files.atomic(directory / FILE) as temporary:
        temporary.write_text(json.dumps(plans, indent=1) + '\n')
  if failed:
    raise ValueError(
      '\n'.join([f'{len(failed)} of {len(missing)} not planned:', *failed])
    )
  return topology


def _key(run: Run) -> tuple[str, dict[str, str]]:
  """Returns what identifies a plan: config, and overrides as JSON has them."""
  flags = commands.config_flags(run)[1:]
  words = (flag.removeprefix('--config.').partition('=') for flag in flags)
  return run.config, {key: value for key, _, value in words}


def plan(words: Sequence[str]) -> dict[str, Any]:
  """Calls vit_jax.plan in a process, as its compiler may crash.

  Args:
    words: its flags.

  Raises:
    ValueError: it failed; the message is its error.
  """
  found = subprocess.run(
    [sys.executable, '-m', 'vit_jax.plan', *words],
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    # The command's own error, or else the end of what a crash printed.
    why = f'\n{found.stderr}'.rpartition('\nerror: ')[2].strip()[-1000:]
    raise ValueError(why or f'exit {found.returncode}')
  return json.loads(found.stdout.strip().splitlines()[-1])
