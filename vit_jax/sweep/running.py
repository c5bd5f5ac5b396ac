"""Runs a sweep to its end as the command's flags say."""

import pathlib
import shlex

from absl import flags

from vit_jax.runtime import installed, preemption
from vit_jax.sweep import bring_to_end, commands, reading, schedule, state
from vit_jax.sweep import table as table_lib
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.launchers import local, slurm, tpu_vm
from vit_jax.sweep.spec import Sweep
from vit_jax.workdir import files

flags.adopt_module_key_flags(table_lib)
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
_RESTARTS = flags.DEFINE_integer(
  'restarts',
  20,
  'How often a run that was preempted, stuck or killed is resumed.',
  lower_bound=0,
)
SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE: set a config key in all runs; may be repeated.'
)
_SLURM = flags.DEFINE_multi_string(
  'slurm',
  [],
  'NAME=VALUE: a flag of sbatch, such as partition=gpu, time=600 (minutes),'
  ' gpus_per_node=1; may be repeated.',
)
_TPUS = flags.DEFINE_list(
  'tpus', [], 'Names of TPU VMs that launch/tpu_vm.py has set up.'
)
DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Check all configs, print the commands, and run nothing.'
)


def with_overrides(sweep: Sweep) -> Sweep:
  """Returns the sweep with the keys of --set."""
  return reading.override(sweep, SET.value)


def print_commands(sweep: Sweep, folders: Folders) -> None:
  """Prints the commands of due runs, and totals as a comment."""
  finished = bring_to_end.read_finished(sweep, folders)
  due = schedule.due(sweep, finished)
  for run in due:
    print(shlex.join(['python', *commands.command(run, folders)[1:]]))
  every = schedule.expected(sweep, finished)
  done = len(every.keys() & finished.keys())
  later = len(every) - done - len(due)
  print(
    f'# Runs in all: {len(every):,}. Finished: {done:,}. Can start now:'
    f' {len(due):,}. Follow: {later:,}.'
  )


def folders() -> Folders:
  """Returns the folders of --workdir and --runs."""
  local = files.absolute(table_lib.WORKDIR.value)
  shared = files.absolute(_RUNS.value) if _RUNS.value else local
  return Folders(pathlib.Path(local), shared)


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
  sweep = with_overrides(reading.load(text))
  reading.check(sweep)
  if DRY_RUN.value:
    print_commands(sweep, where)
    return
  directory.mkdir(parents=True, exist_ok=True)
  if _LAUNCHER.value == 'slurm':
    launcher = slurm.Slurm(where, _PARALLEL.value, _SLURM.value)
  elif _LAUNCHER.value == 'tpu_vm':
    launcher = tpu_vm.TpuVms(where, _TPUS.value)
  else:
    launcher = local.Local(where, _PARALLEL.value)
  with state.lock(directory), preemption.Notice() as notice:
    state.record(where, installed.find('sweep', text), sweep)
    launch = bring_to_end.Launch(sweep, where, launcher, _RESTARTS.value)
    launch.run(lambda: bool(notice.reason))
    if table:
      print(table_lib.write(directory, sweep, launch.finished))
  lines = [f'{name} failed, see {where.log(name)}' for name in launch.failed]
  every = schedule.expected(sweep, launch.finished)
  if missing := len(every.keys() - {*launch.finished, *launch.failed}):
    lines.append(f'{missing} runs wait for others and were not started.')
  if lines:
    raise ValueError('\n'.join(['not all runs finished:', *lines]))
