"""Guards: after SIGTERM or Ctrl-C, all processes stop at the same call.

Here the processes are simulated; `test_preemption_processes.py` has real ones.
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
  # A process in the background starts with SIGINT ignored.
  interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield caught
  assert signal.signal(signal.SIGINT, interrupt) is signal.default_int_handler
  # The notice has removed its own handler.
  assert signal.signal(signal.SIGTERM, previous) is handler
  assert not [
    thread.name
    for thread in threading.enumerate()
    if thread.name.startswith('preemption')
  ]


def _terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm(outer, caplog):
  with preemption.Notice() as notice:
    assert not notice.requested()
    assert notice.reason == ''
    _terminate()
    assert notice.requested()
    assert notice.requested()
    assert notice.reason == 'SIGTERM'
    # Further signals do no harm while the run saves.
    _terminate()
    _terminate()
  assert outer == []
  assert [record.levelname for record in caplog.records] == ['WARNING'] * 3
  assert 'saving after the present step' in caplog.messages[0]
  assert 'SIGTERM again' in caplog.messages[2]
  # The previous handler is back.
  _terminate()
  assert outer == [signal.SIGTERM]


def test_an_error_restores_the_handler(outer):
  with pytest.raises(ValueError, match='bad'), preemption.Notice():
    raise ValueError('bad')
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


def test_an_ignored_signal_stays_ignored():
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with preemption.Notice() as notice:
      signal.raise_signal(signal.SIGINT)
      assert not notice.requested()
  finally:
    signal.signal(signal.SIGINT, before)


def test_a_run_does_not_begin_after_a_notice():
  with preemption.Notice() as notice:
    _terminate()
    time.sleep(0.5)  # `begin` right after a signal would end the process.
    with pytest.raises(errors.PreemptedError, match='stopped before it began'):
      notice.begin()


_BUSY = """
import hashlib, os, signal, sys, threading
from vit_jax.runtime import preemption
signal.signal(signal.SIGINT, signal.default_int_handler)
with preemption.Notice() as notice:
  notice.nothing_to_save = sys.argv[1] == 'nothing'
  send = lambda: os.kill(os.getpid(), signal.Signals[sys.argv[2]])
  for delay in (0.5, 1.0):
    threading.Timer(delay, send).start()
  # For minutes no Python code runs in this thread, as in a compilation.
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)
"""


@pytest.mark.parametrize(
  'what, name, code, line',
  [
    ('nothing', 'SIGTERM', 75, 'SIGTERM: nothing was trained since the start.'),
    ('nothing', 'SIGINT', 130, 'Ctrl-C: nothing was trained since the start.'),
    (
      'much',
      'SIGINT',
      130,
      'Ctrl-C again: what is not in a checkpoint is lost.',
    ),
  ],
)
def test_signals_that_end_a_busy_process_at_once(what, name, code, line):
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _BUSY, what, name],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=False,
  )
  assert result.returncode == code
  assert result.stderr.splitlines()[-1] == (
    f'ended: {line} Start the same command again to go on.'
  )


def test_the_handler_may_interrupt_logging(caplog):
  handler_of_logs = caplog.handler
  with preemption.Notice() as notice:
    handler_of_logs.acquire()  # The main thread has this lock while it logs.
    try:
      _terminate()
      assert notice.requested()
      assert caplog.messages == []
    finally:
      handler_of_logs.release()
  assert len(caplog.messages) == 1


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
