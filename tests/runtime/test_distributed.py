"""Guards: processes of a run meet, agree, and end together.

The processes are real, on 127.0.0.1; `run_process` is what each of them does.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests import ports
from vit_jax.runtime import distributed, errors, preemption

ROOT = pathlib.Path(__file__).parents[2]
LOST = 5  # Seconds without a heartbeat.
PATIENCE = 90  # Seconds, generous so that a slow machine does not fail.
# Whatever JAX and the collectives give when another process is lost.
LOST_CODES = {76, -signal.SIGABRT}


class Run:
  """Several processes that do the same, and what they print."""

  def __init__(self, does, folder, count=2, **environment):
    self._folder = folder
    place = dict(
      coordinator_address=f'127.0.0.1:{ports.free_port()}',
      num_processes=count,
      start_timeout=60,
      lost_timeout=LOST,
    )
    self.processes = [
      self._start(does, {**place, 'process_id': i}, environment)
      for i in range(count)
    ]

  def _start(self, does, place, environment):
    code = 'from tests.runtime import test_distributed as t; t.run_process()'
    own = {k: v[place['process_id']] for k, v in environment.items()}
    with open(self._folder / f'{place["process_id"]}.txt', 'w') as file:
      return subprocess.Popen(
        [sys.executable, '-c', code, *own.pop('WORDS', '').split()],
        cwd=ROOT,
        env={
          **os.environ,
          **{'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'DOES': does},
          **{'PLACE': json.dumps(place), **own},
        },
        stdout=file,
        stderr=subprocess.STDOUT,
      )

  def output(self, index):
    return (self._folder / f'{index}.txt').read_text()

  def wait_for(self, text):
    end = time.monotonic() + PATIENCE
    while not all(text in self.output(i) for i in range(len(self.processes))):
      assert time.monotonic() < end, [self.output(0), self.output(1)]
      time.sleep(0.05)

  def codes(self):
    return [process.wait(PATIENCE) for process in self.processes]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
      process.wait()


def run_process():
  """What a process does: see `BODIES`."""
  # A process that a shell starts in the background ignores SIGINT.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  does, place = os.environ['DOES'], json.loads(os.environ['PLACE'])
  try:
    with distributed.connected(**place):
      BODIES[does](place['process_id'])
  except Exception as error:
    print(f'error: {error}', flush=True)
    sys.exit(errors.code_of(error))


def _steps():
  """Yields the sum of ones, one from each process, again and again."""
  mesh = jax.make_mesh((jax.process_count(),), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.P('data'))
  ones = jax.make_array_from_callback(
    (jax.process_count(),), sharding, lambda index: np.ones(1)
  )
  add = jax.jit(lambda x: x.sum())
  while True:
    yield float(add(ones))


def _agree(index):
  first = distributed.broadcast({'from': index, 'long': 'x' * 1000, 'n': None})
  flags = [distributed.any_true(index == i) for i in (0, 2, 9)]
  print('agreed', json.dumps([next(_steps()), first, flags]), flush=True)
  if index == 0:
    time.sleep(2)
    print('written', flush=True)


def _train(index, wait=0.01):
  with preemption.Notice() as notice:
    for step, _ in enumerate(_steps()):
      if step == 3:
        print('training', flush=True)
      time.sleep(wait * (1 + index))
      if notice.requested():
        raise notice.stopped(f'step {step}')


def _one_fails(index):
  next(_steps())
  if index == 1:
    raise ValueError('not a good config')
  while True:
    time.sleep(1)


def _all_fail(index):
  next(_steps())
  time.sleep(index)
  raise errors.NonFiniteError(f'NaN, says {index}')


BODIES = {
  'agree': _agree,
  'train': _train,
  'one fails': _one_fails,
  'all fail': _all_fail,
}


def test_a_single_process_starts_no_service(monkeypatch):
  monkeypatch.setattr(jax.distributed, 'initialize', None)
  for arguments in ({}, {'num_processes': 1}):
    with distributed.connected(**arguments):
      assert distributed.broadcast((1, 'a')) == (1, 'a')
      assert distributed.any_true(True) is True
      assert distributed.any_true(False) is False


def test_processes_agree_and_wait_for_the_last(tmp_path):
  # What tells the processes their places does not make them differ.
  words = ['--a=1 --process_id=0', '--process_id 1 --a=1', '--a=1']
  with Run('agree', tmp_path, count=3, WORDS=words) as run:
    assert run.codes() == [0, 0, 0]
    for i in range(3):
      [line] = re.findall('agreed (.*)', run.output(i))
      first = {'from': 0, 'long': 'x' * 1000, 'n': None}
      assert json.loads(line) == [3, first, [True, True, False]]
    assert 'written' in run.output(0)


@pytest.mark.parametrize(
  'number, code', [(signal.SIGTERM, 75), (signal.SIGINT, 130)]
)
def test_a_signal_to_one_stops_all_after_the_same_step(tmp_path, number, code):
  with Run('train', tmp_path) as run:
    run.wait_for('training')
    run.processes[1].send_signal(number)
    run.processes[1].send_signal(signal.SIGTERM)  # Does no harm.
    assert run.codes() == [code, code]
    steps = [re.findall(r': step (\d+)', run.output(i)) for i in range(2)]
    assert steps[0] == steps[1] != []


@pytest.mark.parametrize('victim', [0, 1])
def test_a_killed_process_ends_the_others(tmp_path, victim):
  with Run('train', tmp_path) as run:
    run.wait_for('training')
    began = time.monotonic()
    run.processes[victim].kill()
    assert run.processes[1 - victim].wait(PATIENCE) in LOST_CODES
    assert time.monotonic() - began < 3 * LOST + 10


def test_an_error_of_one_process_ends_the_others(tmp_path):
  with Run('one fails', tmp_path) as run:
    assert run.processes[1].wait(PATIENCE) == 1
    assert 'not a good config' in run.output(1)
    assert run.processes[0].wait(PATIENCE) in LOST_CODES


def test_each_process_reports_its_own_error_if_all_fail(tmp_path):
  with Run('all fail', tmp_path) as run:
    assert run.codes() == [1, 1]
    for i in range(2):
      assert f'error: NaN, says {i}' in run.output(i)


def test_processes_that_differ_end_with_an_error(tmp_path):
  words = ['--config.seed=0', '--config.seed=1']
  with Run('agree', tmp_path, WORDS=words) as run:
    assert run.codes() == [1, 1]
    assert 'command line: ' in run.output(1)
    assert 'in process 0' in run.output(1)
    assert 'agreed' not in run.output(0) + run.output(1)


def test_different_values_are_named():
  text = distributed.differences(
    dict(a='y' * 200, b=[2], c=3, d={}, same=1, odd=errors.UNKNOWN),
    dict(a='x' * 200, e=5, same=1, odd=7),
    *('now', 'then'),
  )
  assert 'b: [2] now, nothing then' in text
  assert text.count('sha256') == 2
  assert text.endswith('(and 2 more)')
  assert not distributed.differences({'a': {'b': 1}}, {'a': {'b': 1}}, '', '')
