"""Guards: a notice of Google Cloud's metadata server stops the run."""

import contextlib
import http.server
import pathlib
import signal
import threading
import time

import pytest

from vit_jax.runtime import preemption

PATIENCE = 60  # Seconds, generous so that a slow machine does not fail.


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
  """Hides Google's cloud; checks that the notice caught every signal."""
  monkeypatch.delenv('GCE_METADATA_HOST', raising=False)
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', pathlib.Path('nowhere'))
  caught = []
  previous = signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
  yield
  signal.signal(signal.SIGTERM, previous)
  assert caught == []


def _wait_for(condition):
  end = time.monotonic() + PATIENCE
  while not condition():
    assert time.monotonic() < end, 'nothing came'
    time.sleep(0.01)


class Metadata:
  """A metadata server with settable answers, which counts its requests."""

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
  # This proxy does not answer, so requests must not use it.
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
      assert not notice.requested()
      metadata.values = {'preempted': 'TRUE'}
    _wait_for(lambda: notice.requested())
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
      assert not notice.requested()
    event = f'{word}_ON_HOST_MAINTENANCE'
    metadata.values = {'maintenance_event': event}
    _wait_for(lambda: notice.requested())
    assert notice.reason == f'maintenance-event {event}'


def test_an_event_announced_before_the_start_is_ignored(
  metadata, monkeypatch, caplog
):
  event = 'TERMINATE_ON_HOST_MAINTENANCE'
  with _notice(metadata, monkeypatch, maintenance_event=event) as notice:
    _wait_for(lambda: metadata.asked > 6)
    assert not notice.requested()
    assert caplog.messages == [
      f'maintenance-event {event} was there before this run began: the run goes'
      ' on until SIGTERM.'
    ]
    metadata.values = {'maintenance_event': 'NONE'}
    asked = metadata.asked
    _wait_for(lambda: metadata.asked > asked + 4)
    metadata.values = {'maintenance_event': event}
    _wait_for(lambda: notice.requested())


def test_metadata_server_is_found_on_google_cloud_only(monkeypatch, tmp_path):
  assert preemption.metadata_server() is None
  product = tmp_path / 'product_name'
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', product)
  product.write_text('Google Compute Engine\n')
  assert preemption.metadata_server() == 'metadata.google.internal'
  product.write_text('PowerEdge R740\n')
  assert preemption.metadata_server() is None
  monkeypatch.setenv('GCE_METADATA_HOST', 'here:80')
  assert preemption.metadata_server() == 'here:80'
