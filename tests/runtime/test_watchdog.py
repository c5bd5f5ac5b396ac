"""Guards: the watchdog reports and ends a loop that hangs, even in C code."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from vit_jax.runtime import watchdog

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 240  # Seconds, generous so that a slow machine does not fail.


def _wait_for(condition):
  end = time.monotonic() + PATIENCE
  while not condition():
    assert time.monotonic() < end, 'nothing came'
    time.sleep(0.01)


def test_report():
  texts = []
  end = threading.Event()
  thread = threading.Thread(target=end.wait)
  thread.start()
  try:
    with watchdog.Watchdog(0.3, 0, log=texts.append) as dog:
      dog.beat('step 12')
      _wait_for(lambda: texts)
  finally:
    end.set()
    thread.join()
  assert 'The last was: step 12. The stacks of all threads:' in texts[0]
  assert 'in _wait_for' in texts[0]
  assert 'in wait' in texts[0]


def test_no_report_while_beats_arrive_or_are_not_expected():
  texts = []
  with watchdog.Watchdog(0.5, 0, log=texts.append) as dog:
    for step in range(15):
      dog.beat(f'step {step}')
      time.sleep(0.05)
    with dog.allow('compilation', PATIENCE), dog.allow('inner', 0.1):
      time.sleep(0.7)
    assert texts == []
    # Then the limits apply again.
    _wait_for(lambda: texts)
  assert 'The last was: end of compilation.' in texts[0]


# The main thread hangs in C with the interpreter lock released, like a
# collective whose peer is gone.
_HANG = """
import ctypes, multiprocessing, sys, time
from vit_jax.runtime import logs, watchdog

logs.set_up_console()
with logs.log_file(sys.argv[1]), watchdog.Watchdog(0.4, 1.0) as dog:
  dog.beat('step 7')
  {hang}
print('not reached')
"""


@pytest.fixture
def hang(tmp_path):
  """Starts processes that hang, and kills the remaining ones at the end."""
  processes = []

  def start(code):
    process = subprocess.Popen(
      [sys.executable, '-c', _HANG.format(hang=code), str(tmp_path)],
      cwd=ROOT,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    processes.append(process)
    return process

  yield start
  for process in processes:
    process.kill()
    process.communicate()


def test_a_process_that_hangs_in_c_code_is_ended_with_its_workers(
  hang, tmp_path
):
  process = hang(
    'fork = multiprocessing.get_context("fork")\n'
    '  fork.Process(target=time.sleep, args=[60], daemon=True).start()\n'
    '  ctypes.CDLL(None).pause()'
  )
  # The worker shares the output, which ends when all have closed it.
  output, console = process.communicate(timeout=50)
  assert (process.returncode, output) == (77, '')
  log = (tmp_path / 'train.log').read_text()
  for text in (console, log):
    assert text.count('The last was: step 7.') >= 2
    assert 'File "<string>", line ' in text
    assert 'the process ends with exit code 77. Start it again' in text


def test_time_while_the_process_was_suspended_does_not_count(hang):
  process = hang(
    'print("begun", flush=True)\n  for _ in range(12): time.sleep(0.05)'
  )
  assert process.stdout.readline() == 'begun\n'
  time.sleep(0.1)  # The watchdog has seen the beat.
  process.send_signal(signal.SIGSTOP)
  time.sleep(1.5)
  process.send_signal(signal.SIGCONT)
  output, _ = process.communicate(timeout=PATIENCE)
  assert (process.returncode, output) == (0, 'not reached\n')
