"""Guards: a sweep works on a real Slurm cluster of one node.

Lost jobs are noticed, jobs resume after their time limit, and a killed launcher
repeats no run.
"""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests.sweep import fakes, slurm_cluster
from vit_jax.sweep import make_run, slurm

pytestmark = [
  pytest.mark.slurm,
  pytest.mark.skipif(
    bool(slurm_cluster.missing()) or os.geteuid() != 0,
    reason='needs Slurm (apt-get install slurm-wlm), and root to start it',
  ),
]
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def cluster():
  with (
    tempfile.TemporaryDirectory(prefix='slurm') as folder,
    slurm_cluster.started(pathlib.Path(folder)) as environment,
  ):
    yield environment


def _command(workdir):
  return [
    *(sys.executable, '-m', 'vit_jax.sweep'),
    *('--sweep=configs/sweeps/digits.py:01', f'--workdir={workdir}'),
    *('--launcher=slurm', '--slurm=time=10', '--set=total_steps=4'),
    '--set=schedule.warmup_steps=2',
  ]


def _events(workdir):
  path = workdir / 'events.jsonl'
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_lost_job_is_noticed(cluster, tmp_path, monkeypatch):
  for name in ('PATH', 'SLURM_CONF'):
    monkeypatch.setenv(name, cluster[name])
  run = fakes.study().candidates[0]
  launcher = slurm.Slurm(
    fakes.folders(tmp_path), 0, ['time=10'], command=fakes.command(600)
  )
  launcher._queue = slurm.Queue(seconds=2)
  handle = launcher.start(run)
  started = tmp_path / 'runs' / f'{run.name}.starts'
  _wait(started.exists)
  assert launcher.poll(handle) is None
  subprocess.run(
    ['pkill', '-KILL', '-f', f'submitit.core._submit.*{tmp_path}'], check=True
  )
  other = launcher.start(fakes.study().candidates[1])
  codes = []
  _wait(lambda: codes.append(launcher.poll(handle)) or codes[-1] is not None)
  assert codes[-1] == -signal.SIGKILL
  assert launcher.poll(other) is None
  launcher.stop(other)


def test_a_job_at_its_time_limit_is_resumed(cluster, tmp_path, monkeypatch):
  for name in ('PATH', 'SLURM_CONF'):
    monkeypatch.setenv(name, cluster[name])
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.delenv('XLA_FLAGS')
  monkeypatch.chdir(ROOT)
  where = fakes.folders(tmp_path)
  # The run takes longer than the time before Slurm's warning.
  run = make_run(
    'a',
    'configs/quickstart.py:scratch',
    {'total_steps': 100_000, 'evals.test.every': 0},
    x=0,
  )
  launcher = slurm.Slurm(where, 0, ['time=2', 'signal_delay_s=75'])
  handle = launcher.start(run)
  log = where.log(run.name)
  # Slurm delays a requeued job for about two minutes.
  _wait(lambda: log.exists() and log.read_text().count('Resuming') > 0, 400)
  assert launcher.poll(handle) is None
  launcher.stop(handle)


def _wait(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.2)


def test_a_sweep_whose_launcher_is_killed(cluster, tmp_path):
  workdir = tmp_path / 'sweep'
  options = dict(cwd=ROOT, env=cluster | {'JAX_PLATFORMS': 'cpu'})
  launcher = subprocess.Popen(_command(workdir), **options)
  end = time.monotonic() + 120
  while not any('code' in event for event in _events(workdir)):
    assert launcher.poll() is None
    assert time.monotonic() < end
    time.sleep(0.2)
  launcher.send_signal(signal.SIGKILL)
  launcher.wait()
  done = subprocess.run(
    _command(workdir), **options, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  starts = collections.Counter(
    event['run'] for event in _events(workdir) if 'handle' in event
  )
  assert set(starts.values()) == {1}
  assert len(starts) == 4 + 3  # Four rates, and three seeds of the best.
  table = (workdir / 'results.md').read_text()
  assert '| digits:01 | rate=' in table
  assert ' | 3 ' in table
  assert len(list((workdir / 'runs').rglob('DONE'))) == 7
