"""Guards: Slurm jobs report exit codes, notice lost jobs and save in time.

submitit's local executor replaces Slurm.
"""

import os
import signal
import time

import pytest

from tests.sweep import fakes
from vit_jax.sweep import slurm


def _codes(launcher, handles):
  codes = dict.fromkeys(handles)
  end = time.monotonic() + 60
  while None in codes.values() and time.monotonic() < end:
    for handle, code in codes.items():
      if code is None:
        codes[handle] = launcher.poll(handle)
    time.sleep(0.05)
  return [codes[handle] for handle in handles]


def test_the_exit_code_of_a_job_is_read(tmp_path):
  pytest.importorskip('submitit')
  where = fakes.folders(tmp_path)
  good, bad = fakes.study().candidates[:2]
  launcher = slurm.Slurm(
    where,
    0,
    command=fakes.command(0, {bad.name: 76}),
    executor='LocalExecutor',
  )
  assert launcher.slots == 1000
  handles = [launcher.start(good), launcher.start(bad)]
  assert _codes(launcher, handles) == [0, 76]
  assert (where.workdir(good.name) / 'DONE').exists()
  # A later launcher finds the jobs by their numbers.
  later = slurm.Slurm(where, 0, executor='LocalExecutor')
  assert _codes(later, handles) == [0, 76]


def test_a_job_is_lost_if_it_is_not_in_the_queue_twice(monkeypatch, tmp_path):
  squeue = tmp_path / 'squeue'
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')

  def answer(*jobs, code=0):
    lines = ' '.join(jobs)
    squeue.write_text(f'#!/bin/sh\nprintf "%s\\n" {lines}\nexit {code}\n')
    squeue.chmod(0o755)

  def look():
    queue._next = 0.0
    return [queue.lost(job, ['1', '2']) for job in ('1', '2')]

  queue = slurm.Queue()
  answer('1', '12')
  assert look() == [False, False]
  assert look() == [False, True]
  # Between two queries, the last result counts.
  answer('1', '2')
  assert queue.lost('2', ['1', '2'])
  assert look() == [False, False]
  # A query that fails changes nothing.
  answer(code=1)
  assert look() == [False, False]
  assert look() == [False, False]
  answer('1')
  assert look() == [False, False]
  assert look() == [False, True]


def test_a_command_saves_at_its_time_limit(tmp_path):
  submitit = pytest.importorskip('submitit')
  where = fakes.folders(tmp_path)
  run = fakes.study().candidates[0]
  words = fakes.command(20)(run, where)
  command = slurm.Command(words, str(tmp_path / 'log'))
  started = tmp_path / 'runs' / f'{run.name}.starts'
  alive, asked = [], []

  def warn(*_):
    # submitit, too, calls `checkpoint` from a handler while the command runs.
    if not started.exists():
      signal.setitimer(signal.ITIMER_REAL, 0.1)
      return
    # Slurm's warning also reaches the run, which must ignore it.
    os.kill(command._pid, signal.SIGUSR2)
    time.sleep(0.1)
    alive.append(os.waitpid(command._pid, os.WNOHANG) == (0, 0))
    asked.append(command.checkpoint())

  known = signal.signal(signal.SIGALRM, warn)
  try:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    before = time.monotonic()
    # `checkpoint` has already waited for the process. At this point, submitit
    # would end this process and requeue the job.
    with pytest.raises(ChildProcessError):
      command()
  finally:
    signal.signal(signal.SIGALRM, known)
  assert time.monotonic() - before < 15
  assert alive == [True]
  [again] = asked
  assert isinstance(again, submitit.core.utils.DelayedSubmission)
  assert vars(again.function) == {
    '_command': words,
    '_log': str(tmp_path / 'log'),
    '_pid': 0,
  }
