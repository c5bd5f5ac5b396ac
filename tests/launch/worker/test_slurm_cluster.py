"""Guards: launch/slurm.sbatch saves and requeues on a real one-node cluster."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import pytest

from tests import commands, several
from tests.launch.worker import slurm_cluster

pytestmark = [
  pytest.mark.slurm,
  pytest.mark.skipif(
    bool(slurm_cluster.missing()) or os.geteuid() != 0,
    reason='needs Slurm (apt-get install slurm-wlm), and root to start it',
  ),
]
ROOT = pathlib.Path(__file__).parents[3]
SAVES = """
trap 'sleep 1; echo saved; exit 75' TERM
echo ready
while true; do sleep 0.2; done
"""


@pytest.fixture(scope='module')
def cluster():
  with (
    tempfile.TemporaryDirectory(prefix='slurm') as folder,
    slurm_cluster.started(pathlib.Path(folder)) as environment,
  ):
    yield environment


@pytest.fixture
def submit(cluster, tmp_path):
  """Returns a function that submits a job of two tasks of a shell program."""
  jobs = []

  def start(program, *flags):
    commands.write_program(tmp_path / 'program', program)
    jobs.append(
      call(
        *('sbatch', '--parsable', '--ntasks=2', f'--output={tmp_path}/out'),
        *(*flags, 'launch/slurm.sbatch', '--config=a', '--b=c d'),
      ).strip()
    )
    return jobs[-1]

  def call(*words):
    variables = cluster | {'PYTHON': str(tmp_path / 'program')}
    return commands.run_new(*words, **variables).stdout

  start.call = call
  start.output = lambda: (
    (tmp_path / 'out').read_text() if (tmp_path / 'out').exists() else ''
  )
  yield start
  for job in jobs:
    call('scancel', job)


def wait(submit, job, *words):
  """Waits until `scontrol show job` prints all of these words."""
  end = time.monotonic() + 100
  while True:
    printed = submit.call('scontrol', 'show', 'job', job).split()
    if {*words} <= {*printed}:
      return
    assert time.monotonic() < end, (printed, submit.output())
    time.sleep(0.5)


def test_an_error_of_one_process_ends_the_job(submit):
  job = submit('[ $SLURM_PROCID = 0 ] && exit 1; sleep 1; kill -ABRT $$')
  wait(submit, job, 'JobState=FAILED', 'ExitCode=1:0', 'Restarts=0')


def test_a_lost_host_requeues_the_job(submit):
  job = submit('echo "args: $*"; exit 76')
  # Slurm delays a requeued job for about two minutes.
  wait(submit, job, 'JobState=PENDING', 'Restarts=1')
  text = submit.output()
  assert text.count('args: -m vit_jax.main --config=a --b=c d\n') == 2
  assert 'slurm.sbatch: queued again code=76 restart=1' in text


def test_a_job_at_its_time_limit_saves_and_is_requeued(submit):
  # Slurm checks the time limit only every half minute.
  job = submit(SAVES, '--time=2', '--signal=B:TERM@75')
  wait(submit, job, 'JobState=PENDING', 'Restarts=1')
  assert submit.output().count('saved') == 2


def test_a_cancelled_job_saves_and_is_not_requeued(submit):
  job = submit(SAVES)
  several.wait_for(lambda: submit.output().count('ready') == 2)
  submit.call('scancel', job)
  wait(submit, job, 'JobState=CANCELLED', 'Restarts=0')
  text = submit.output()
  assert text.count('saved') == 2
  assert 'slurm.sbatch: stopped code=75' in text


SWEEP = """
from vit_jax.sweep import Study, Sweep, make_run

def get_sweep(argument):
  small = {'total_steps': 4, 'schedule.warmup_steps': 2}
  return Sweep([Study('a', finals=[
    make_run('a', 'configs/quickstart.py:scratch', {**small, 'seed': i}, seed=i)
    for i in range(2)
  ])])
"""


def test_a_sweep_whose_launcher_is_killed_repeats_nothing(cluster, tmp_path):
  (tmp_path / 'sweep.py').write_text(SWEEP)
  words = [
    *(sys.executable, '-m', 'vit_jax.sweep', f'--workdir={tmp_path}/sweep'),
    *(f'--sweep={tmp_path}/sweep.py', '--launcher=slurm', '--slurm=time=10'),
  ]
  options = dict(cwd=ROOT, env=cluster | {'JAX_PLATFORMS': 'cpu'})
  events = tmp_path / 'sweep' / 'events.jsonl'
  launcher = subprocess.Popen(words, **options)
  while not events.exists() or events.read_text().count('handle') < 2:
    assert launcher.poll() is None
    time.sleep(0.2)
  launcher.kill()
  launcher.wait()
  done = subprocess.run(words, **options, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  assert '[2 of 2 done, 0 running]' in done.stdout
  text = events.read_text()
  assert (text.count('handle'), text.count('"code": 0')) == (2, 2)
