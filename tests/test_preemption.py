"""SIGTERM and the cloud's notices: a run that may save before it stops."""

import contextlib
import http.server
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from vit_jax import preemption

ROOT = pathlib.Path(__file__).parent.parent
PATIENCE = 60  # Seconds; a slow machine is no failure.


@pytest.fixture(autouse=True)
def outer(monkeypatch):
  """Not on Google's cloud; and the signals that nobody else caught."""
  monkeypatch.delenv('GCE_METADATA_HOST', raising=False)
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', pathlib.Path('nowhere'))
  caught = []

  def handler(signum, frame):
    caught.append(signum)

  previous = signal.signal(signal.SIGTERM, handler)
  yield caught
  # Whatever was installed in between was removed again.
  assert signal.signal(signal.SIGTERM, previous) is handler
  assert not [
    thread.name
    for thread in threading.enumerate()
    if thread.name.startswith('preemption')
  ]


def _terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(condition):
  end = time.monotonic() + PATIENCE
  while not condition():
    assert time.monotonic() < end, 'nothing came'
    time.sleep(0.01)


def test_sigterm(outer, caplog):
  with preemption.Notice() as notice:
    assert not notice.requested(1)
    assert notice.reason == ''
    _terminate()
    assert notice.requested(2)
    assert notice.requested(3)
    assert notice.reason == 'SIGTERM'
    # While the run saves, others do no harm.
    _terminate()
    _terminate()
  assert outer == []
  assert [record.levelname for record in caplog.records] == ['WARNING'] * 3
  again = 'SIGTERM again; the run is already saving and stopping.'
  assert caplog.messages == [
    'SIGTERM: saving after the present step, then stopping.',
    again,
    again,
  ]
  # Then it is as before.
  _terminate()
  assert outer == [signal.SIGTERM]


def test_an_error_restores_the_handler(outer):
  with pytest.raises(ValueError, match='bad'), preemption.Notice():
    raise ValueError('bad')
  _terminate()
  assert outer == [signal.SIGTERM]


def test_the_handler_may_interrupt_logging(caplog):
  handler_of_logs = caplog.handler
  with preemption.Notice() as notice:
    handler_of_logs.acquire()  # By the main thread, as while it logs.
    try:
      _terminate()
      assert notice.requested(1)
      assert caplog.messages == []
    finally:
      handler_of_logs.release()
  assert len(caplog.messages) == 1


def test_in_another_thread_nothing_is_changed(outer, monkeypatch, metadata):
  monkeypatch.setenv('GCE_METADATA_HOST', metadata.start(preempted='TRUE'))
  results = []

  def run():
    with preemption.Notice(poll_seconds=0.01) as notice:
      _terminate()
      time.sleep(0.1)
      results.append((notice.requested(1), notice.reason))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  _wait_for(lambda: outer)
  assert results == [(False, '')]
  assert outer == [signal.SIGTERM]


_FORK = """
import os, signal, time
from vit_jax import preemption
with preemption.Notice():
  pid = os.fork()
  if not pid:
    time.sleep(60)
    os._exit(0)
  time.sleep(0.2)
  os.kill(pid, signal.SIGTERM)
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_can_be_ended():
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _FORK],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=True,
  )
  assert result.stdout == '-15\n'


# ---- Google Cloud -----------------------------------------------------------


class Metadata:
  """A metadata server: what it says, and how often it was asked."""

  def __init__(self):
    self.values = {}
    self.status = 200
    self.asked = 0
    self._server = None

  def start(self, **values):
    self.values = values
    metadata = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self):
        metadata.asked += 1
        key = self.path.removeprefix('/computeMetadata/v1/instance/')
        value = metadata.values.get(key.replace('-', '_'))
        status = metadata.status
        if self.headers['Metadata-Flavor'] != 'Google':
          status = 403
        elif value is None:
          status = 404
        self.send_response(status)
        self.end_headers()
        self.wfile.write(f'{value}\n'.encode())

      def log_message(self, *_):
        pass

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._thread = threading.Thread(
      target=self._server.serve_forever, args=(0.01,)
    )
    self._thread.start()
    return f'127.0.0.1:{self._server.server_port}'

  def stop(self):
    if self._server:
      self._server.shutdown()
      self._server.server_close()
      self._thread.join()


@pytest.fixture
def metadata():
  server = Metadata()
  yield server
  server.stop()


@contextlib.contextmanager
def _notice(metadata, monkeypatch, **values):
  # A proxy that answers nothing: the server is not behind it.
  monkeypatch.setenv('http_proxy', 'http://127.0.0.1:9')
  monkeypatch.delenv('no_proxy', raising=False)
  monkeypatch.setenv('GCE_METADATA_HOST', metadata.start(**values))
  with preemption.Notice(poll_seconds=0.01) as notice:
    yield notice


@pytest.mark.parametrize('at_once', [False, True])
def test_preempted(metadata, monkeypatch, caplog, at_once):
  values = {'preempted': 'TRUE' if at_once else 'FALSE'}
  with _notice(metadata, monkeypatch, **values) as notice:
    if not at_once:
      _wait_for(lambda: metadata.asked > 4)
      assert not notice.requested(1)
      metadata.values = {'preempted': 'TRUE'}
    _wait_for(lambda: notice.requested(2))
    assert notice.reason == 'preempted'
  assert caplog.messages == [
    'preempted: saving after the present step, then stopping.'
  ]


@pytest.mark.parametrize('word', ['TERMINATE', 'SHUTDOWN'])
def test_maintenance(metadata, monkeypatch, word):
  values = {'preempted': 'FALSE', 'maintenance_event': 'NONE'}
  with _notice(metadata, monkeypatch, **values) as notice:
    for event in ('NONE', 'MIGRATE_ON_HOST_MAINTENANCE', 'NONE'):
      metadata.values = {'maintenance_event': event}
      asked = metadata.asked
      _wait_for(lambda asked=asked: metadata.asked > asked + 4)
      assert not notice.requested(1)
    event = f'{word}_ON_HOST_MAINTENANCE'
    metadata.values = {'maintenance_event': event}
    _wait_for(lambda: notice.requested(2))
    assert notice.reason == f'maintenance-event {event}'


def test_an_event_that_stood_at_the_start_is_no_notice(
  metadata, monkeypatch, caplog
):
  event = 'TERMINATE_ON_HOST_MAINTENANCE'
  with _notice(metadata, monkeypatch, maintenance_event=event) as notice:
    _wait_for(lambda: metadata.asked > 6)
    assert not notice.requested(1)
    assert caplog.messages == [
      f'maintenance-event {event} stood before this run began: it goes on until'
      ' SIGTERM.'
    ]
    metadata.values = {'maintenance_event': 'NONE'}
    asked = metadata.asked
    _wait_for(lambda: metadata.asked > asked + 4)
    metadata.values = {'maintenance_event': event}
    _wait_for(lambda: notice.requested(2))


def test_a_server_that_fails_is_asked_again(metadata, monkeypatch, caplog):
  metadata.status = 503
  with _notice(metadata, monkeypatch, preempted='TRUE') as notice:
    _wait_for(lambda: metadata.asked > 4)
    assert not notice.requested(1)
    assert caplog.messages == []
    metadata.status = 200
    _wait_for(lambda: notice.requested(2))


def test_no_server(monkeypatch):
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))  # Does not listen: refuses.
    monkeypatch.setenv(
      'GCE_METADATA_HOST', f'127.0.0.1:{listener.getsockname()[1]}'
    )
    with preemption.Notice(poll_seconds=0.01) as notice:
      time.sleep(0.1)
      assert not notice.requested(1)
      begin = time.monotonic()
    assert time.monotonic() - begin < 2


def test_where_there_is_a_metadata_server(monkeypatch, tmp_path):
  assert preemption.metadata_server() is None
  product = tmp_path / 'product_name'
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', product)
  product.write_text('Google Compute Engine\n')
  assert preemption.metadata_server() == 'metadata.google.internal'
  product.write_text('PowerEdge R740\n')
  assert preemption.metadata_server() is None
  monkeypatch.setenv('GCE_METADATA_HOST', 'here:80')
  assert preemption.metadata_server() == 'here:80'


# ---- Several processes ------------------------------------------------------

# The processes step together, as a collective makes them do: each waits for
# the other's file of the step before.
_PROCESS = """
import os, pathlib, sys, time
import jax
from vit_jax import preemption

index, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.distributed.initialize(
  f'127.0.0.1:{port}', 2, index, initialization_timeout=30
)
with preemption.Notice(poll_seconds=0.01) as notice:
  print('ready', flush=True)
  for step in range(1, 3000):
    time.sleep(0.01 * (1 + index))
    (folder / f'{index}.{step}').touch()
    while not (folder / f'{1 - index}.{step}').exists():
      time.sleep(0.002)
    if notice.requested(step):
      os.kill(os.getpid(), 15)  # Once more, while saving.
      time.sleep(0.1)
      assert notice.requested(step + 1)
      print(step, notice.reason, flush=True)
      break
jax.distributed.shutdown()
"""


@pytest.fixture
def two_processes(tmp_path):
  """Starts two processes of a run; ends them if they are left."""
  processes = []

  def start(*environments):
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    for index, environment in enumerate(environments):
      processes.append(
        subprocess.Popen(
          [sys.executable, '-c', _PROCESS, str(index), str(port), tmp_path],
          cwd=ROOT,
          env=os.environ
          | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
          | environment,
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
        )
      )
    for process in processes:
      assert process.stdout.readline() == 'ready\n', process.communicate()[1]
    return processes

  yield start
  for process in processes:
    process.kill()
    process.communicate()


def _stops(processes):
  """Each process's step and reason."""
  result = []
  for process in processes:
    output, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    step, reason = output.strip().split(' ', 1)
    assert re.search(
      f'{reason}, here or of another process: saving at step {step}', log
    )
    result.append((int(step), reason))
  return result


@pytest.mark.parametrize('index', [0, 1])
def test_sigterm_of_one_stops_all_at_one_step(two_processes, index):
  processes = two_processes({}, {})
  processes[index].send_signal(signal.SIGTERM)
  (step, reason), other = _stops(processes)
  assert (step, reason) == other
  assert reason == 'SIGTERM'


def test_the_notice_of_one_machine_stops_all(two_processes, metadata):
  processes = two_processes(
    {}, {'GCE_METADATA_HOST': metadata.start(preempted='FALSE')}
  )
  metadata.values = {'preempted': 'TRUE'}
  (step, reason), (other_step, other_reason) = _stops(processes)
  assert step == other_step
  assert (reason, other_reason) == ('SIGTERM', 'preempted')
