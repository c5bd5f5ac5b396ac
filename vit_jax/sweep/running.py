"""Runs a sweep to its end as the command's flags say."""

import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping

from absl import flags

from vit_jax.sweep import (
  bring_to_end,
  commands,
  local,
  schedule,
  spec,
  state,
  status,
)
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep
from vit_jax.workdir import files

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the sweep, on this machine.'
)
_RUNS = flags.DEFINE_string(
  'runs',
  None,
  "Folder of the runs' work directories; default: --workdir. All machines of"
  ' the runs must see it, such as gs://BUCKET/PATH.',
)
_LAUNCHER = flags.DEFINE_enum(
  'launcher',
  'local',
  ['local', 'slurm', 'tpu_vm'],
  'Where the runs run: on this machine, as Slurm jobs, or on TPU VMs.',
)
_PARALLEL = flags.DEFINE_integer(
  'parallel',
  0,
  'Number of runs at a time. 0: one for each GPU or TPU chip, or one without'
  ' them; on Slurm, all runs.',
  lower_bound=0,
)
_RETRIES = flags.DEFINE_integer(
  'retries', 2, 'How often a failed run is tried again.', lower_bound=0
)
_RESTARTS = flags.DEFINE_integer(
  'restarts',
  20,
  'How often a run that was preempted, stuck or killed is resumed.',
  lower_bound=0,
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE: set a config key in all runs; may be repeated.'
)
_SLURM = flags.DEFINE_multi_string(
  'slurm',
  [],
  'NAME=VALUE: a parameter of submitit.SlurmExecutor, such as partition=gpu,'
  ' time=600 (minutes), gpus_per_node=1; may be repeated.',
)
_TPUS = flags.DEFINE_list(
  'tpus', [], 'Names of TPU VMs that launch/tpu_vm.py has set up.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Check all configs, print the commands, and run nothing.'
)


@dataclasses.dataclass(frozen=True)
class SweepFile:
  """The contents of a sweep file, with the keys of --set.

  Attributes:
    sweep: the sweep without its summary.
    has_summary: whether the file defines a summary.
    steps: run name -> its `total_steps`; 0 if the config gives epochs instead.
  """

  sweep: Sweep
  has_summary: bool
  steps: Mapping[str, int]


def read_sweep(text: str) -> SweepFile:
  """Reads and checks a sweep file in a separate process."""
  words = [text, *_SET.value]
  result = subprocess.run(
    [sys.executable, '-m', 'vit_jax.sweep.reading', '--', *words],
    stdout=subprocess.PIPE,
    text=True,
    check=False,
    process_group=0,  # Only this process handles Ctrl-C.
  )
  if result.returncode:
    sys.exit(1)  # The process has printed the reason.
  found = json.loads(result.stdout)
  return SweepFile(
    spec.from_json(found['studies']), found['summary'], found['steps']
  )


def sets(key: str) -> bool:
  """Returns whether --set sets a config key."""
  return any(word.partition('=')[0] == key for word in _SET.value)


def set_keys() -> list[str]:
  """Returns the values of --set, KEY=VALUE."""
  return _SET.value


def with_overrides(sweep: Sweep) -> Sweep:
  """Returns the sweep with the keys of --set."""
  from vit_jax.sweep import reading

  return reading.override(sweep, _SET.value)


def make_launcher(folders: Folders) -> bring_to_end.Launcher:
  if _LAUNCHER.value == 'slurm':
    from vit_jax.sweep import slurm

    return slurm.Slurm(folders, _PARALLEL.value, _SLURM.value)
  if _LAUNCHER.value == 'tpu_vm':
    from vit_jax.sweep import tpu_vm

    return tpu_vm.TpuVms(folders, _TPUS.value)
  return local.Local(folders, _PARALLEL.value)


def print_commands(sweep: Sweep, folders: Folders) -> None:
  """Prints the commands of due runs, comments on later ones, and totals."""
  finished = bring_to_end.read_finished(sweep, folders)
  due = schedule.due(sweep, finished)
  for run in due:
    print(shlex.join(['python', *commands.command(run, folders)[1:]]))
  for run in schedule.held_back(sweep, finished):
    print(f'# {run.name}: after {", ".join(run.needs)}.')
  for study in sweep.studies:
    if schedule.reported(study, finished) is None:
      finals = study.finals_of(study.candidates[0])
      print(f'# {study.name}: then {len(finals)} runs of the best of these.')
  every = schedule.expected(sweep, finished)
  done = len(every.keys() & finished.keys())
  later = len(every) - done - len(due)
  print(
    f'# Runs in all: {len(every):,}. Finished: {done:,}. Can start now:'
    f' {len(due):,}. Follow: {later:,}.'
  )


def is_dry_run() -> bool:
  """Returns whether --dry_run is set."""
  return _DRY_RUN.value


def folders() -> Folders:
  """Returns the folders of --workdir and --runs."""
  directory = pathlib.Path(files.absolute(_WORKDIR.value))
  return Folders(directory, files.absolute(_RUNS.value or _WORKDIR.value))


def run(text: str, *, table: bool = True) -> None:
  """Runs a sweep to its end, as the flags say.

  Args:
    text: `FILE[:ARGUMENT]`, as `installed.find` takes it.
    table: whether to gather the results and to print their table.

  Raises:
    ValueError: the sweep is wrong, or runs failed; the message names them.
    PreemptedError: SIGTERM, SIGHUP or Ctrl-C stopped the sweep.
  """
  where = folders()
  directory = where.local
  if _DRY_RUN.value:
    from vit_jax.sweep import reading

    sweep = with_overrides(reading.load(text))
    reading.check(sweep)
    print_commands(sweep, where)
    return
  directory.mkdir(parents=True, exist_ok=True)
  with state.lock(directory), bring_to_end.signals() as stopped:
    file = read_sweep(text)
    sweep = file.sweep
    state.record(directory, sweep, lambda name: where.workdir(name).exists())
    limits = schedule.Limits(_RETRIES.value, _RESTARTS.value)
    launcher = make_launcher(where)
    view = status.view()
    try:
      running = bring_to_end.Launch(
        sweep, where, launcher, limits, view, file.steps
      )
      failed = running.run(stopped)
    finally:
      view.close()
    words = [f'--workdir={directory}', f'--runs={where.shared}']
    if file.has_summary:
      words.append(f'--sweep={text}')
    result = table and subprocess.run(
      [sys.executable, '-m', 'vit_jax.sweep.table', *words], check=False
    )
  if failed:
    lines = [f'{name} failed, see {where.log(name)}' for name in failed]
    lines += schedule.blocked(sweep, running.finished, failed)
    raise ValueError('\n'.join(['not all runs finished:', *lines]))
  if table and result.returncode:
    sys.exit(1)  # The process has printed the reason.
