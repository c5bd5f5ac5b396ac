"""Guards: the watchdog reports and ends a loop that hangs, even in C code."""

import os
import pathlib
import re
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


def _stand_still_here(event):
  event.wait()


def test_report():
  texts = []
  end = threading.Event()
  threads = [
    threading.Thread(target=_stand_still_here, args=(end,), name=name)
    for name in ('reader-0', 'reader-1')
  ]
  try:
    for thread in threads:
      thread.start()
    with watchdog.Watchdog(0.3, 0, log=texts.append) as dog:
      dog.beat('step 12')
      _wait_for(lambda: texts)
      dog.beat('step 13')
      _wait_for(lambda: len(texts) > 1 and texts[-1].startswith('The run goes'))
  finally:
    end.set()
    for thread in threads:
      thread.join()
  lines = texts[0].splitlines()
  assert re.match(r'Nothing finished for 0:\d\d, since 20\d\d-', lines[0])
  assert lines[0].endswith('The last was: step 12. The stacks of all threads:')
  # The main thread comes first, and each frame names its line of code.
  assert lines[1].startswith('Thread MainThread')
  assert 'in _wait_for' in texts[0]
  assert 'Thread reader-0, reader-1:\n' in texts[0]
  assert texts[0].count('in _stand_still_here') == 1
  assert 'watchdog.py' not in texts[0].split('in _stand_still_here')[1]
  assert re.fullmatch(r'The run goes on after 0:\d\d: step 13\.', texts[-1])


def test_no_report_while_beats_arrive_or_after_the_end():
  texts = []
  with watchdog.Watchdog(0.5, 0, log=texts.append) as dog:
    for step in range(30):
      dog.beat(f'step {step}')
      time.sleep(0.05)
    with dog.allow('compilation', PATIENCE):
      time.sleep(0.7)
  assert 'watchdog' not in [thread.name for thread in threading.enumerate()]
  assert texts == []


def test_limits_apply_again_after_the_allowed_time():
  texts = []
  with watchdog.Watchdog(0.2, 0, log=texts.append) as dog:
    with dog.allow('outer', 0.1), dog.allow('compilation', PATIENCE):
      pass
    _wait_for(lambda: texts)
  assert 'The last was: end of outer.' in texts[0]


# The main thread hangs in C with the interpreter lock released, like a
# collective whose peer is gone.
_HANG = """
import ctypes, sys
from absl import logging
from vit_jax.runtime import logs, watchdog

logs.set_up_console()
with logs.log_file(sys.argv[1]), watchdog.Watchdog(0.4, 1.0) as dog:
  dog.beat('step 7')
  {hang}
print('not reached')
"""
_PAUSE = 'ctypes.CDLL(None).pause()'


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


def test_a_process_that_hangs_in_c_code_is_ended(hang, tmp_path):
  process = hang(_PAUSE)
  output, console = process.communicate(timeout=PATIENCE)
  assert process.returncode == 77
  assert output == ''
  log = (tmp_path / 'train.log').read_text()
  for text in (console, log):
    # At most two reports come before the last message.
    assert 2 <= text.count('Nothing finished for') <= 3, text
    assert text.count('The last was: step 7.') >= 2
    assert 'Thread MainThread:\n  File "<string>", line 9' in text
    assert 'the process ends with exit code 77. Start it again' in text


def test_data_workers_are_ended_too(hang):
  # The workers share the process's output, which ends when all have closed it.
  process = hang(
    'import multiprocessing, time\n'
    '  fork = multiprocessing.get_context("fork")\n'
    '  fork.Process(target=time.sleep, args=[30], daemon=True).start()\n'
    '  ' + _PAUSE
  )
  assert process.wait(PATIENCE) == 77
  start = time.monotonic()
  process.communicate(timeout=PATIENCE)
  assert time.monotonic() - start < 10


def test_time_while_the_process_was_suspended_does_not_count(hang):
  # Three steps of 0.6 seconds of running time.
  process = hang(
    'import time\n'
    '  for step in range(3):\n'
    '    dog.beat(f"step {step}")\n'
    '    print(step, flush=True)\n'
    '    for _ in range(12): time.sleep(0.05)'
  )
  assert process.stdout.readline() == '0\n'
  time.sleep(0.1)  # The watchdog has seen this beat.
  process.send_signal(signal.SIGSTOP)
  time.sleep(1.5)
  process.send_signal(signal.SIGCONT)
  output, _ = process.communicate(timeout=PATIENCE)
  assert process.returncode == 0
  assert output.endswith('not reached\n')
