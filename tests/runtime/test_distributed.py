"""Guards: processes of a run meet, agree, and end together.

The processes are real, on 127.0.0.1; each of them runs `programs`.
"""

import contextlib
import json
import pathlib
import re
import signal
import tempfile
import time

import jax
import pytest

from tests import several
from tests.runtime import programs
from vit_jax.runtime import distributed, errors

PATIENCE = 90  # Seconds, generous so that a slow machine does not fail.
# Whatever JAX and the collectives give when another process is lost.
LOST_CODES = {76, -signal.SIGABRT}


@pytest.fixture
def start(tmp_path):
  """Starts processes, each with the words given for it; ends them."""
  with contextlib.ExitStack() as stack:

    def start(does, *words):
      words = [[does, *own.split()] for own in words or ('', '')]
      folder = tempfile.mkdtemp(dir=tmp_path)
      return stack.enter_context(
        several.Several(pathlib.Path(folder), 'tests.runtime.programs', words)
      )

    yield start


def test_a_single_process_starts_no_service(monkeypatch):
  monkeypatch.setattr(jax.distributed, 'initialize', None)
  for arguments in ({}, {'num_processes': 1}):
    with distributed.connected(**arguments):
      assert distributed.broadcast((1, 'a')) == (1, 'a')
      assert distributed.any_true(True) is True
      assert distributed.any_true(False) is False


def test_processes_agree_and_wait_for_the_last(start):
  # What tells the processes their places does not make them differ.
  words = ('--a=1 --process_id=0', '--process_id 1 --a=1', '--a=1')
  run = start('agree', *words)
  assert run.codes(PATIENCE) == [0, 0, 0]
  for i in range(3):
    [line] = re.findall('agreed (.*)', run.output(i))
    first = {'from': 0, 'long': 'x' * 1000, 'n': None}
    assert json.loads(line) == [3, first, [True, True, False]]
  assert 'written' in run.output(0)


def test_a_signal_to_one_stops_all_after_the_same_step(start):
  runs = {signal.SIGTERM: start('train'), signal.SIGINT: start('train')}
  for number, run in runs.items():
    run.wait_for('training', PATIENCE)
    run.processes[1].send(number)
    run.processes[1].send(signal.SIGTERM)  # Does no harm.
  for number, run in runs.items():
    code = 130 if number == signal.SIGINT else 75
    assert run.codes(PATIENCE) == [code, code]
    steps = [re.findall(r': step (\d+)', run.output(i)) for i in range(2)]
    assert steps[0] == steps[1] != []


def test_a_process_that_is_lost_ends_the_others(start):
  killed = {0: start('train'), 1: start('train')}
  failed = start('one fails')
  for victim, run in killed.items():
    run.wait_for('training', PATIENCE)
    run.processes[victim].send(signal.SIGKILL)
  began = time.monotonic()
  for victim, run in killed.items():
    assert run.processes[1 - victim].wait(PATIENCE) in LOST_CODES
  assert time.monotonic() - began < 3 * programs.LOST + 10
  assert failed.processes[1].wait(PATIENCE) == 1
  assert 'not a good config' in failed.output(1)
  assert failed.processes[0].wait(PATIENCE) in LOST_CODES


def test_each_process_reports_its_own_error_if_all_fail(start):
  alike = start('all fail')
  differing = start('agree', '--config.seed=0', '--config.seed=1')
  assert alike.codes(PATIENCE) == differing.codes(PATIENCE) == [1, 1]
  for i in range(2):
    assert f'error: NaN, says {i}' in alike.output(i)
    assert 'agreed' not in differing.output(i)
  assert 'command line: ' in differing.output(1)
  assert 'in process 0' in differing.output(1)


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
