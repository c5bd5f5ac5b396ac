"""Guards: signals stop a run in order; a loop that hangs ends its process.

`test_distributed.py` has several processes.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests import several
from vit_jax.runtime import errors, preemption

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 240  # Seconds, generous so that a slow machine does not fail.


@pytest.fixture
def outer():
  """Yields the signals that the notice did not catch."""
  caught = []

  def handler(signum, frame):
    caught.append(signum)

  # A process in the background starts with SIGINT ignored, and `nohup` lets it
  # ignore SIGHUP.
  ours = {
    signal.SIGTERM: handler,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: handler,
  }
  previous = {n: signal.signal(n, action) for n, action in ours.items()}
  yield caught
  # The notice has restored the handlers.
  restored = {n: signal.signal(n, action) for n, action in previous.items()}
  assert restored == ours


@pytest.mark.parametrize(
  'number, code',
  [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)],
)
def test_a_request_to_stop(outer, caplog, number, code):
  with preemption.Notice() as notice:
    assert not notice.requested()
    signal.raise_signal(number)
    several.wait_for(notice.requested, PATIENCE)
    assert notice.stopped('saved').exit_code == code
    several.wait_for(lambda: 'saving, then stopping' in caplog.text, PATIENCE)
    # Further signals do no harm while the run saves.
    signal.raise_signal(signal.SIGTERM)
    several.wait_for(lambda: 'SIGTERM: already saving' in caplog.text, PATIENCE)
    assert notice.stopped('saved').exit_code == code
    with pytest.raises(errors.PreemptedError, match='stopped before it began'):
      notice.begin()
  assert outer == []


def test_ctrl_c_in_an_interactive_session_interrupts(outer, monkeypatch):
  monkeypatch.setattr(sys, 'ps1', '>>> ', raising=False)
  with preemption.Notice() as notice:
    notice.begin()
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    time.sleep(0.2)  # The process does not end a moment later, either.


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(outer, number):
  before = signal.signal(number, signal.SIG_IGN)
  try:
    with preemption.Notice() as notice:
      signal.raise_signal(number)
      time.sleep(0.2)
      assert not notice.requested()
  finally:
    signal.signal(number, before)


@pytest.mark.parametrize(
  'what, name, code, line',
  [
    ('nothing', 'SIGTERM', 75, 'SIGTERM: ended; nothing was trained'),
    ('much', 'SIGINT', 130, 'Ctrl-C again: ended; what is not in a checkpoint'),
  ],
)
def test_signals_that_end_a_process_at_once(command, what, name, code, line):
  done = command('tests.runtime.programs', 'busy', what, name)
  assert done.returncode == code
  assert line in done.stderr.splitlines()[-1]


_CLOSED = """
import fcntl, os, signal, termios, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from vit_jax.runtime import command_line, preemption

def main():
  with preemption.Notice() as notice:
    print('ready', flush=True)
    while not notice.requested():
      time.sleep(0.01)
    print('saving', flush=True)
    raise notice.stopped('saved')

command_line.run(main)
"""


def test_a_closed_terminal_stops_a_run_in_order():
  ours, terminal = os.openpty()
  process = subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', _CLOSED],
    **dict.fromkeys(['stdin', 'stdout', 'stderr'], terminal),
    start_new_session=True,
    cwd=ROOT,
  )
  os.close(terminal)
  text = b''
  while b'ready\r\n' not in text:  # The terminal takes the line in two pieces.
    text += os.read(ours, 1000)
  os.close(ours)
  assert process.wait(PATIENCE) == 75


# ---- Loops that hang ---------------------------------------------------------


def test_a_process_ends_only_if_beats_are_expected_and_missing(monkeypatch):
  ended = []
  monkeypatch.setattr(tempfile, 'tempdir', '/nowhere')  # A disk may hang.
  monkeypatch.setattr(
    preemption.distributed, 'end_process', lambda *args: ended.append(args)
  )
  with preemption.Watchdog(0.5) as dog:
    for step in range(15):
      dog.beat(f'step {step}')
      time.sleep(0.05)
    with dog.allow('compilation', PATIENCE), dog.allow('inner', 0.1):
      time.sleep(0.7)
    assert not ended
    # Then the limit applies again.
    several.wait_for(lambda: ended, PATIENCE)
  code, text = ended[0]
  assert code == 77
  assert 'The last was: end of compilation. The stacks of all' in text
  assert 'in wait_for' in text


# The main thread hangs in C with the interpreter lock released, like a
# collective whose peer is gone.
_HANG = """
import ctypes, multiprocessing, sys, time
from vit_jax.runtime import logs, preemption

logs.set_up_console()
with logs.log_file(sys.argv[1]), preemption.Watchdog(1.0) as dog:
  dog.beat('step 7')
  print('begun', flush=True)
  for _ in range(12): time.sleep(0.05)
  fork = multiprocessing.get_context('fork')
  fork.Process(target=time.sleep, args=[60], daemon=True).start()
  dog.beat('step 8')
  ctypes.CDLL(None).pause()
"""


def test_a_process_that_hangs_in_c_code_is_ended_with_its_workers(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', _HANG, str(tmp_path)],
    cwd=ROOT,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'begun\n'
    # Time while the process is suspended does not count.
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    # The worker shares the output, which ends when all have closed it.
    _, console = process.communicate(timeout=PATIENCE)
  assert process.returncode == 77
  for text in (console, (tmp_path / 'train.log').read_text()):
    assert text.count('The last was: step 8.') == 1
    assert 'File "<string>", line ' in text
    assert 'the process ends with exit code 77. Start it again' in text
