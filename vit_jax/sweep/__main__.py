"""Runs a sweep: `python -m vit_jax.sweep --sweep=FILE --workdir=DIR`.

  --sweep=configs/sweeps/digits.py           the protocol in minutes, on a CPU
  --sweep=configs/sweeps/finetune.py:ViT-B/16,cifar10+cifar100+pets+flowers
  --sweep=configs/sweeps/regularisation.py:ViT-B/16,imagenet2012
  --set=KEY=VALUE                    sets a key of the config in all runs
  --dry_run                          checks all configs, prints the commands

Candidates are compared by their accuracy on held-out training data, and the
runs to report are made from the best. To compare them by anything else, such
as the accuracy on the test split, is refused before anything starts.

Run it again with the same flags to go on: finished runs stay, cut off ones
resume, failed ones are tried again. Exit codes: 0 all was done; 1 an error, or
a run failed --retries times more; 75 stopped by SIGTERM or Ctrl-C.

Results: DIR/results.csv, results.md; logs in DIR/logs, runs in DIR/runs. So far
and without waiting: python -m vit_jax.sweep.table --workdir=DIR.
"""

import json
import pathlib
import shlex
import subprocess
import sys

from absl import flags

from vit_jax import command_line, paths
from vit_jax.sweep import commands, launch, local, schedule, spec, state, status
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep

_SWEEP = flags.DEFINE_string(
  'sweep', None, 'Sweep file, with its argument: configs/sweeps/NAME.py[:ARG].'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the sweep, on this machine.'
)
_RUNS = flags.DEFINE_string(
  'runs',
  None,
  'Where the runs work, if not in --workdir: what all their machines share,'
  ' such as gs://BUCKET/PATH.',
)
_LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', ['local', 'slurm', 'tpu_vm'], 'Where the runs run.'
)
_PARALLEL = flags.DEFINE_integer(
  'parallel',
  0,
  'How many runs at a time; 0 is one for each GPU or TPU chip (or one), and'
  ' all of them on Slurm.',
  lower_bound=0,
)
_RETRIES = flags.DEFINE_integer(
  'retries', 2, 'How often a run that failed is tried again.', lower_bound=0
)
_RESTARTS = flags.DEFINE_integer(
  'restarts',
  20,
  'How often a run that was preempted, stuck or killed goes on.',
  lower_bound=0,
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE, a config key for all runs; may be repeated.'
)
_SLURM = flags.DEFINE_multi_string(
  'slurm',
  [],
  'NAME=VALUE, a parameter of submitit.SlurmExecutor, such as partition=gpu,'
  ' time=600 (minutes), gpus_per_node=1; may be repeated.',
)
_TPUS = flags.DEFINE_list(
  'tpus', [], 'Names of TPU VMs that are set up (launch/tpu_vm.py).'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Check all configs, print the commands, and run nothing.'
)


def read_sweep() -> tuple[Sweep, bool]:
  """The sweep, checked in another process, and whether it has a summary."""
  words = [_SWEEP.value, *_SET.value]
  result = subprocess.run(
    [sys.executable, '-m', 'vit_jax.sweep.reading', '--', *words],
    stdout=subprocess.PIPE,
    text=True,
    check=False,
    process_group=0,  # Ctrl-C is for this process to answer.
  )
  if result.returncode:
    sys.exit(1)  # It has said why.
  found = json.loads(result.stdout)
  return spec.from_json(found['studies']), found['summary']


def make_launcher(folders: Folders) -> launch.Launcher:
  if _LAUNCHER.value == 'slurm':
    from vit_jax.sweep import slurm

    return slurm.Slurm(folders, _PARALLEL.value, _SLURM.value)
  if _LAUNCHER.value == 'tpu_vm':
    from vit_jax.sweep import tpu_vm

    return tpu_vm.TpuVms(folders, _TPUS.value)
  return local.Local(folders, _PARALLEL.value)


def print_commands(sweep: Sweep, folders: Folders) -> None:
  """What is due now, and how many runs are made from what is chosen."""
  finished = launch.read_finished(sweep, folders)
  for run in schedule.due(sweep, finished):
    print(shlex.join(['python', *commands.command(run, folders)[1:]]))
  for run in schedule.held_back(sweep, finished):
    print(f'# {run.name}: after {", ".join(run.needs)}.')
  for study in sweep.studies:
    if schedule.reported(study, finished) is None:
      finals = study.finals_of(study.candidates[0])
      print(f'# {study.name}: then {len(finals)} runs of the best of these.')


def main() -> None:
  directory = pathlib.Path(paths.absolute(_WORKDIR.value))
  folders = Folders(directory, paths.absolute(_RUNS.value or _WORKDIR.value))
  if _DRY_RUN.value:
    print_commands(read_sweep()[0], folders)
    return
  directory.mkdir(parents=True, exist_ok=True)
  with state.lock(directory), launch.signals() as stopped:
    sweep, has_summary = read_sweep()
    state.record(directory, sweep, lambda name: folders.workdir(name).exists())
    limits = schedule.Limits(_RETRIES.value, _RESTARTS.value)
    launcher = make_launcher(folders)
    view = status.view()
    try:
      running = launch.Launch(sweep, folders, launcher, limits, view)
      failed = running.run(stopped)
    finally:
      view.close()
    words = [f'--workdir={directory}', f'--runs={folders.shared}']
    if has_summary:
      words.append(f'--sweep={_SWEEP.value}')
    result = subprocess.run(
      [sys.executable, '-m', 'vit_jax.sweep.table', *words], check=False
    )
  if failed:
    lines = [f'{name} failed, see {folders.log(name)}' for name in failed]
    lines += schedule.blocked(sweep, running.finished, failed)
    raise ValueError('\n'.join(['not all runs finished:', *lines]))
  if result.returncode:
    sys.exit(1)  # It has said why.


if __name__ == '__main__':
  command_line.run(main, required=('sweep', 'workdir'))
