"""Guards: sweeps start and follow runs on Slurm and on TPU VMs.

Stand-ins replace sbatch, squeue, scancel and the program for TPU VMs.
"""

import os
import subprocess

import pytest
from etils import epath

from tests.commands import write_program
from tests.sweep import fakes
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.launchers import slurm, tpu_vm

RUNS = fakes.study().candidates


@pytest.fixture
def cluster(tmp_path, monkeypatch):
  """Provides a Slurm cluster, whose queue is the file `queue`."""
  stand_ins = {
    'sbatch': 'echo "$LAUNCH $*" >> $F/calls; wc -l < $F/calls',
    'squeue': 'cat $F/queue',
    'scancel': 'echo "scancel $*" >> $F/calls',
  }
  for name, text in stand_ins.items():
    write_program(tmp_path / name, f'F={tmp_path}\n{text}')
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  monkeypatch.setattr(slurm.Slurm, 'interval', 0.0)
  (tmp_path / 'queue').write_text('')
  return tmp_path


def _slurm(cluster, *options):
  return slurm.Slurm(fakes.folders(cluster / 'sweep'), 0, options)


def test_a_job_is_submitted(cluster):
  launcher = _slurm(cluster, 'partition=gpu', 'gpus_per_node=1', 'time=9')
  handle = launcher.start(RUNS[0])
  log = cluster / 'sweep' / 'logs' / f'{RUNS[0].name}.log'
  assert handle == f'1 {log}'
  launch, words = (cluster / 'calls').read_text().split(maxsplit=1)
  assert words.startswith(
    f'--parsable --output={log} --time=1440 --export=ALL --partition=gpu'
    f' --gpus-per-node=1 --time=9 {launch}/slurm.sbatch'
    ' --config=held_out.py --config.rate=0.001'
    f' --workdir={cluster}/sweep/runs/{RUNS[0].name}'
  )
  launcher.stop(handle)
  assert (cluster / 'calls').read_text().endswith('scancel 1\n')
  with pytest.raises(ValueError, match='--slurm=x: expected NAME=VALUE'):
    _slurm(cluster, 'x')


@pytest.mark.parametrize(
  'text, code',
  [
    ('slurm.sbatch: ended code=0 job=1\n', 0),
    ('slurm.sbatch: ended code=1 job=1\n', 1),
    ('slurm.sbatch: stopped code=75 job=1 state=COMPLETING\n', 75),
    # Another job of this run ended so; this one was killed.
    ('slurm.sbatch: ended code=1 job=12\n', -9),
    ('a step\n', -9),
  ],
)
def test_a_job_has_ended_if_it_is_not_in_the_queue_twice(cluster, text, code):
  launcher = _slurm(cluster)
  handle = launcher.start(RUNS[0])
  (cluster / 'queue').write_text('1\n12\n')
  assert [launcher.poll(handle) for _ in range(3)] == [None] * 3
  # A later launcher finds the job by its handle.
  launcher = _slurm(cluster)
  (cluster / 'sweep/logs' / f'{RUNS[0].name}.log').write_text(text)
  (cluster / 'queue').write_text('12\n')
  assert launcher.poll(handle) is None
  (cluster / 'queue').write_text('1\n')  # It was late, or requeued.
  assert launcher.poll(handle) is None
  (cluster / 'queue').write_text('12\n')
  assert [launcher.poll(handle) for _ in range(2)] == [None, code]


def test_a_job_that_is_cancelled_before_it_starts(cluster):
  launcher = _slurm(cluster)
  handle = launcher.start(RUNS[0])
  assert [launcher.poll(handle) for _ in range(2)] == [None, -9]


def test_a_query_that_fails_ends_no_job(cluster):
  launcher = _slurm(cluster)
  handle = launcher.start(RUNS[0])
  (cluster / 'squeue').write_text('#!/bin/sh\nexit 1\n')
  assert [launcher.poll(handle) for _ in range(4)] == [None] * 4


def _line(state, alive='no'):
  return f'worker=w-0 alive={alive} state={state} | x\n'


@pytest.mark.parametrize(
  'states, code',
  [
    (['ended code=0', 'ended code=0'], 0),
    (['ended code=76', 'ended code=1'], 1),
    (['ended code=0', 'gave_up code=77'], 77),
    (['stopped code=75'], 75),
    (['running'], 75),  # A restart of the machine interrupted it.
    (['new', 'ended code=0'], -9),  # The slice is a new one.
    (['idle'], -9),
    ([], None),  # The slice was taken away, or is in maintenance.
  ],
)
def test_exit_codes_follow_from_the_machines_states(states, code):
  lines = ''.join(map(_line, states))
  assert tpu_vm.exit_code(f'queued resource: ACTIVE\n{lines}') == code
  alive = _line('running', 'yes')
  assert tpu_vm.exit_code(lines + alive) is None


@pytest.fixture
def slices(monkeypatch):
  """Stands in for launch/tpu_vm.py; `fails` names the commands that fail."""

  class Slices:
    calls, status, fails = [], _line('running', 'yes'), ()

    def run(self, words, **_):
      _, _, program, command, name, *rest = words
      assert program == 'vit_jax.launch.tpu_vm'
      self.calls.append((command, name, *rest))
      code = int(command in self.fails)
      return subprocess.CompletedProcess(words, code, self.status)

  slices = Slices()
  slices.calls = []
  monkeypatch.setattr(tpu_vm.subprocess, 'run', slices.run)
  monkeypatch.setenv('CLOUDSDK_CORE_PROJECT', 'p')
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'z')
  return slices


def _pool(path, names=('x', 'y'), shared='gs://bucket/sweep'):
  return tpu_vm.TpuVms(Folders(path, epath.Path(shared)), names)


def test_each_slice_has_one_run(slices, tmp_path):
  pool = _pool(tmp_path)
  assert pool.slots == 2
  assert [pool.start(run) for run in RUNS[:2]] == ['x', 'y']
  assert slices.calls[0] == (
    *('run', '--name=x', '--', '--config=held_out.py', '--config.rate=0.001'),
    '--workdir=gs://bucket/sweep/runs/a/rate=0.001',
    '--compilation_cache=gs://bucket/sweep/compilation_cache',
  )
  assert pool.poll('y') is None
  slices.status = _line('ended code=0')
  assert pool.poll('y') == 0
  assert pool.start(RUNS[2]) == 'y'
  pool.stop('x')
  assert slices.calls[-1] == ('stop', '--name=x')


def test_a_slice_out_of_reach(slices, tmp_path):
  pool = _pool(tmp_path)
  assert pool.start(RUNS[0]) == 'x'
  slices.fails = ('run', 'status')
  assert pool.poll('x') is None  # The run continues.
  # A run that did not start must be started again.
  assert pool.start(RUNS[1]) == 'y'
  assert pool.poll('y') == -9
  assert pool.poll('x') is None


def test_a_pool_adopts_running_runs(slices, tmp_path):
  pool = _pool(tmp_path)
  assert pool.poll('x') is None
  assert pool.start(RUNS[0]) == 'y'
  with pytest.raises(ValueError, match='on z, which --tpus= does not name'):
    pool.poll('z')


def test_a_pool_that_could_run_nothing_is_refused(
  slices, tmp_path, monkeypatch
):
  with pytest.raises(ValueError, match='different TPU VMs'):
    _pool(tmp_path, names=('x', 'x'))
  with pytest.raises(ValueError, match='expected gs://BUCKET/PATH'):
    _pool(tmp_path, shared='runs')
  monkeypatch.delenv('CLOUDSDK_CORE_PROJECT')
  with pytest.raises(ValueError, match='CLOUDSDK_CORE_PROJECT'):
    _pool(tmp_path)
