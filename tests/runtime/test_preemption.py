"""Guards: SIGTERM, SIGHUP, Ctrl-C and the cloud stop a run in order.

`test_distributed.py` has several processes.
"""

import http.server
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
PATIENCE = 240  # Seconds, generous so that a slow machine does not fail.


@pytest.fixture(autouse=True)
def outer(monkeypatch):
  """Hides Google's cloud; yields the signals that the notice did not catch."""
  monkeypatch.delenv('GCE_METADATA_HOST', raising=False)
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', pathlib.Path('nowhere'))
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


def _wait_for(condition):
  end = time.monotonic() + PATIENCE
  while not condition():
    assert time.monotonic() < end, 'nothing came'
    time.sleep(0.01)


@pytest.mark.parametrize(
  'number, code',
  [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)],
)
def test_a_request_to_stop(outer, caplog, number, code):
  with preemption.Notice() as notice:
    assert not notice.requested()
    signal.raise_signal(number)
    assert notice.requested()
    assert notice.stopped('saved').exit_code == code
    _wait_for(lambda: 'saving after the present step' in caplog.text)
    # Further signals do no harm while the run saves.
    signal.raise_signal(signal.SIGTERM)
    _wait_for(lambda: 'SIGTERM: the run is already saving' in caplog.text)
    assert notice.stopped('saved').exit_code == code
    with pytest.raises(errors.PreemptedError, match='stopped before it began'):
      notice.begin()
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


def test_in_another_thread_a_notice_changes_nothing(outer):
  results = []

  def run():
    with preemption.Notice() as notice:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.1)
      results.append(notice.requested())

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert (results, outer) == ([False], [signal.SIGTERM])


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
  # For minutes no Python code runs in this thread, as in a compilation.
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)
"""


@pytest.mark.parametrize(
  'what, name, code, line',
  [
    ('nothing', 'SIGTERM', 75, 'SIGTERM: ended; nothing was trained'),
    ('nothing', 'SIGINT', 130, 'Ctrl-C: ended; nothing was trained'),
    ('much', 'SIGINT', 130, 'Ctrl-C again: ended; what is not in a checkpoint'),
  ],
)
def test_signals_that_end_a_process_at_once(what, name, code, line):
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _BUSY, what, name],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=False,
  )
  assert result.returncode == code
  assert line in result.stderr.splitlines()[-1]


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
  while b'ready' not in text:
    text += os.read(ours, 1000)
  os.close(ours)
  assert process.wait(PATIENCE) == 75


def test_the_cloud_s_notice(monkeypatch):
  answers = [(500, b''), (200, b'FALSE'), (200, b'FALSE'), (200, b'TRUE')]

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      assert self.path == '/computeMetadata/v1/instance/preempted'
      assert self.headers['Metadata-Flavor'] == 'Google'
      code, text = answers.pop(0)
      self.send_response(code)
      self.end_headers()
      self.wfile.write(text + b'\n')

    def log_message(self, *_):
      pass

  with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    host = f'127.0.0.1:{server.server_port}'
    monkeypatch.setenv('GCE_METADATA_HOST', host)
    with preemption.Notice(poll_seconds=0.01) as notice:
      _wait_for(notice.requested)
      assert (notice.reason, answers) == ('preempted', [])
      assert notice.stopped('saved').exit_code == 75
    server.shutdown()
    thread.join()


def test_metadata_server_is_found_on_google_cloud_only(monkeypatch, tmp_path):
  assert preemption.metadata_server() is None
  product = tmp_path / 'product_name'
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', product)
  product.write_text('Google Compute Engine\n')
  assert preemption.metadata_server() == 'metadata.google.internal'
  product.write_text('PowerEdge R740\n')
  assert preemption.metadata_server() is None
