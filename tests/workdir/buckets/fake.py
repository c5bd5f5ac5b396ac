"""A local fake bucket, whose service a test can make fail.

The server is `gcp-storage-emulator`. This module adds what the clients need and
the emulator lacks: concurrent requests, preconditions, moves, and listings from
one name to another.
"""

import contextlib
import functools
import http.server
import io
import json
import threading
import time
import urllib.parse

from gcp_storage_emulator import exceptions, server, storage
from gcp_storage_emulator.handlers import buckets

NAME = 'bucket'

# The right that each kind of request needs, as the service documents it.
_RIGHTS = {
  'list': 'storage.objects.list',
  'bucket': 'storage.buckets.get',
  'read': 'storage.objects.get',
  'write': 'storage.objects.create',
  'delete': 'storage.objects.delete',
}


class Bucket:
  """A server with one bucket, which tests can make fail.

  Attributes:
    url: the URL of the server.
    denied: missing rights, such as `storage.buckets.get`.
    refused: the number of requests during outages.
  """

  def __init__(self):
    self.storage = storage.Storage(use_memory_fs=True)
    self.lock = threading.RLock()
    self.reset()
    self._server = http.server.ThreadingHTTPServer(
      ('127.0.0.1', 0), functools.partial(_Handler, self)
    )
    self._server.daemon_threads = True
    self.url = f'http://127.0.0.1:{self._server.server_port}'
    threading.Thread(target=self._server.serve_forever, daemon=True).start()

  def reset(self) -> None:
    """Empties the bucket, and ends its failures."""
    with self.lock:
      self.storage.wipe()
      buckets.create_bucket(NAME, self.storage)
    self.denied: set[str] = set()
    self.refused = 0
    self.down_until = 0.0

  def fail(self, seconds: float) -> None:
    """Answers every request with 503 for `seconds` from now."""
    self.down_until = time.monotonic() + seconds

  def names(self) -> list[str]:
    with self.lock:
      return sorted(self.storage.objects.get(NAME, {}))

  def read(self, name: str) -> bytes:
    with self.lock:
      return self.storage.get_file(NAME, name)

  def generation(self, name: str) -> str:
    try:
      return self.storage.get_file_obj(NAME, name)['generation']
    except exceptions.NotFound:
      return '0'

  def close(self) -> None:
    self._server.shutdown()
    self._server.server_close()

  def environment(self) -> dict[str, str]:
    """Returns environment variables that make this bucket gs://bucket."""
    return {
      'STORAGE_EMULATOR_HOST': self.url,
      'FSSPEC_GS_TOKEN': 'anon',
      'FSSPEC_GCS_TOKEN': 'anon',
      # TensorStore reads these two.
      'TENSORSTORE_GCS_HTTP_URL': self.url,
      'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',
      # ArrayRecord reads this one.
      'CLOUD_STORAGE_EMULATOR_ENDPOINT': self.url,
    }


class _Handler(server.RequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True

  def __init__(self, bucket, *args):
    self.bucket = bucket
    with contextlib.suppress(ConnectionError):  # The client has gone.
      super().__init__(bucket.storage, *args)

  def _handle(self, method):
    bucket = self.bucket
    # Reads the body of a refused request, too, because the next request comes
    # on the same connection.
    body = server._read_raw_data(self) or b''
    path, _, query = self.path.partition('?')
    self.query = {k: v[0] for k, v in urllib.parse.parse_qs(query).items()}
    found = path.partition('/o/')
    self.name = self.query.get('name') or urllib.parse.unquote(found[2])
    kind = self._kind(method, path)
    with bucket.lock:
      if time.monotonic() < bucket.down_until:
        bucket.refused += 1
        return self._refuse(503, 'The service is down.')
      right = _RIGHTS[kind]
      if kind == 'write' and bucket.generation(self.name) != '0':
        # Overwriting needs both rights.
        right = next(iter(bucket.denied & {right, _RIGHTS['delete']}), right)
      if right in bucket.denied:
        return self._refuse(403, f'The caller does not have {right}.')
      generation = bucket.generation(self.name)
      if self.query.get('ifGenerationMatch', generation) != generation:
        return self._refuse(412, 'Another generation.')
      if self.query.get('ifGenerationNotMatch') == generation:
        return self._refuse(304, '')
      if kind == 'list' and 'startOffset' in self.query:
        return self._list()
      moved, to, target = self.path.partition('/moveTo/')
      if to:
        self.path = f'{moved}/copyTo/b/{NAME}/{target}'
      connection, self.rfile = self.rfile, io.BytesIO(body)
      del self.headers['Transfer-Encoding'], self.headers['Content-Length']
      self.headers['Content-Length'] = str(len(body))
      try:
        server.Router(self).handle(method)
        if to:
          name = moved.partition('/o/')[2]
          self.storage.delete_file(NAME, urllib.parse.unquote(name))
      finally:
        self.rfile = connection

  do_GET = functools.partialmethod(_handle, server.GET)
  do_POST = functools.partialmethod(_handle, server.POST)
  do_PUT = functools.partialmethod(_handle, server.PUT)
  do_DELETE = functools.partialmethod(_handle, server.DELETE)
  do_PATCH = functools.partialmethod(_handle, server.PATCH)

  def _kind(self, method, path):
    if path.startswith('/batch') or method == server.DELETE:
      return 'delete'
    if method != server.GET:
      return 'write'
    if path.endswith('/o'):
      return 'list'
    return 'read' if '/o/' in path else 'bucket'

  def _list(self):
    names = [
      name
      for name in self.bucket.names()
      if self.query['startOffset'] <= name
      and name < self.query.get('endOffset', '\U0010ffff')
    ]
    items = [self.storage.get_file_obj(NAME, name) for name in names]
    self._answer(200, json.dumps({'kind': 'storage#objects', 'items': items}))

  def _refuse(self, code, message):
    content = {'error': {'code': code, 'message': message}}
    self._answer(code, json.dumps(content) if message else '')

  def _answer(self, code, text):
    self.send_response(code)
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(text)))
    self.end_headers()
    self.wfile.write(text.encode())

  def send_response(self, code, message=None):
    super().send_response(code, message)
    if self.command == 'GET' and self.name:
      self.send_header('x-goog-generation', self.bucket.generation(self.name))

  def log_message(self, *_):
    pass
