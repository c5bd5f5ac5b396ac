"""A sweep on a real Slurm cluster of one node."""

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

from tests.sweep import slurm_cluster

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
  assert len(starts) == 4 + 3  # Rates, and seeds of the best.
  table = (workdir / 'results.md').read_text()
  assert '| digits:01 | rate=' in table
  assert ' | 3 ' in table
  assert len(list((workdir / 'runs').rglob('DONE'))) == 7
