"""Guards: SIGTERM, SIGHUP and Ctrl-C stop a run in order.

`test_distributed.py` has several processes.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from vit_jax.runtime import errors, preemption

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 60  # Seconds, generous so that a slow machine does not fail.


@pytest.fixture(autouse=True)
def outer(monkeypatch):
  """Hides Google's cloud; yields the signals that the notice did not catch."""
  monkeypatch.delenv('GCE_METADATA_HOST', raising=False)
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', pathlib.Path('nowhere'))
  caught = []

  def handler(signum, frame):
    caught.append(signum)

  previous = signal.signal(signal.SIGTERM, handler)
  # A process in the background starts with SIGINT ignored, and `nohup` lets it
  # ignore SIGHUP.
  interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
  hangup = signal.signal(signal.SIGHUP, handler)
  yield caught
  assert signal.signal(signal.SIGHUP, hangup) is handler
  assert signal.signal(signal.SIGINT, interrupt) is signal.default_int_handler
  # The notice has removed its own handler.
  assert signal.signal(signal.SIGTERM, previous) is handler
  assert not [
    thread.name
    for thread in threading.enumerate()
    if thread.name.startswith('preemption')
  ]


def _terminate(number=signal.SIGTERM):
  os.kill(os.getpid(), number)


@pytest.mark.parametrize('first', ['SIGTERM', 'SIGHUP'])
def test_a_request_to_stop(outer, caplog, first):
  with preemption.Notice() as notice:
    assert not notice.requested()
    assert notice.reason == ''
    _terminate(signal.Signals[first])
    assert notice.requested()
    assert notice.requested()
    assert notice.reason == first
    assert notice.stopped('saved').exit_code == 75
    # Further signals do no harm while the run saves.
    _terminate(signal.Signals[first])
    _terminate(signal.SIGINT)
  assert outer == []
  assert [record.levelname for record in caplog.records] == ['WARNING'] * 3
  already = 'the run is already saving and stopping.'
  assert caplog.messages == [
    f'{first}: saving after the present step, then stopping.',
    f'{first} again: {already}',
    f'Ctrl-C: {already}',
  ]
  # The previous handler is back.
  _terminate()
  assert outer == [signal.SIGTERM]


def test_ctrl_c_is_a_notice_with_its_own_exit_code(outer):
  before = signal.getsignal(signal.SIGINT)
  with preemption.Notice() as notice:
    os.kill(os.getpid(), signal.SIGINT)
    assert notice.requested()
    assert notice.reason == 'Ctrl-C'
    error = notice.stopped('saved')
    assert (error.exit_code, str(error)) == (130, 'Ctrl-C: saved')
  assert signal.getsignal(signal.SIGINT) is before
  with preemption.Notice() as notice:
    _terminate()
    assert notice.requested()
    assert notice.stopped('saved').exit_code == 75
  assert outer == []


def test_ctrl_c_in_an_interactive_session_is_a_keyboard_interrupt(monkeypatch):
  monkeypatch.setattr(sys, 'ps1', '>>> ', raising=False)
  with preemption.Notice() as notice:
    notice.begin()
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    time.sleep(0.5)  # The process does not end a moment later, either.


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number):
  before = signal.signal(number, signal.SIG_IGN)
  try:
    with preemption.Notice() as notice:
      signal.raise_signal(number)
      assert not notice.requested()
  finally:
    signal.signal(number, before)


def test_a_run_does_not_begin_after_a_notice():
  with preemption.Notice() as notice:
    _terminate()
    time.sleep(0.5)  # `begin` right after a signal would end the process.
    with pytest.raises(errors.PreemptedError, match='stopped before it began'):
      notice.begin()


_BUSY = """
import hashlib, os, signal, sys, threading, time
from vit_jax.runtime import preemption
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with preemption.Notice() as notice:
  notice.nothing_to_save = sys.argv[1] == 'nothing'
  send = lambda: os.kill(os.getpid(), signal.Signals[sys.argv[2]])
  for delay in (0.5, 1.0):
    threading.Timer(delay, send).start()
  if sys.argv[3] == 'Python':
    time.sleep(60)
  # For minutes no Python code runs in this thread, as in a compilation.
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)
"""


@pytest.mark.parametrize(
  'busy, what, name, code, line',
  [
    ('C++', 'nothing', 'SIGTERM', 75, 'SIGTERM: nothing was trained since'),
    ('Python', 'nothing', 'SIGHUP', 75, 'SIGHUP: nothing was trained since'),
    ('Python', 'nothing', 'SIGINT', 130, 'Ctrl-C: nothing was trained since'),
    ('C++', 'much', 'SIGINT', 130, 'Ctrl-C again: what is not in a checkpoint'),
    ('Python', 'much', 'SIGINT', 130, 'Ctrl-C again: what is not in a check'),
  ],
)
def test_signals_that_end_a_process_at_once(busy, what, name, code, line):
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _BUSY, what, name, busy],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=False,
  )
  assert result.returncode == code
  *before, last = result.stderr.splitlines()
  assert last.startswith(f'ended: {line}')
  assert last.endswith(' Start the same command again to go on.')
  # What came before does not say that the run is saving, or will save.
  assert 'already' not in result.stderr
  assert sum('saving' in each for each in before) == (what == 'much')


def test_in_another_thread_a_notice_changes_nothing(outer, monkeypatch):
  monkeypatch.setenv('GCE_METADATA_HOST', 'not asked')
  monkeypatch.setattr(preemption, '_ask', lambda *_: 'TRUE')
  results = []

  def run():
    with preemption.Notice(poll_seconds=0.01) as notice:
      _terminate()
      time.sleep(0.1)
      results.append((notice.requested(), notice.reason))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert results == [(False, '')]
  assert outer == [signal.SIGTERM]


_CLOSED = """
import fcntl, os, signal, termios, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from vit_jax.runtime import command_line, preemption

def main():
  with preemption.Notice() as notice:
    notice.nothing_to_save = os.environ['WHAT'] == 'nothing'
    print('ready', flush=True)
    while not notice.requested():
      time.sleep(0.01)
    print('saving', flush=True)
    raise notice.stopped('saved')

command_line.run(main)
"""


@pytest.mark.parametrize('what', ['nothing', 'much'])
def test_a_closed_terminal_stops_a_run_in_order(what):
  ours, terminal = os.openpty()
  process = subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', _CLOSED],
    **dict.fromkeys(['stdin', 'stdout', 'stderr'], terminal),
    start_new_session=True,
    cwd=ROOT,
    env=os.environ | {'WHAT': what},
  )
  os.close(terminal)
  text = b''
  while b'ready' not in text:
    text += os.read(ours, 1000)
  os.close(ours)
  assert process.wait(PATIENCE) == 75
