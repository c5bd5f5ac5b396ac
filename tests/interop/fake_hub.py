"""A server that speaks the part of the Hugging Face Hub that downloads use."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator

COMMIT = 'c0ffee' + 34 * '0'


def blob_id(data: bytes) -> str:
  """Returns Git's name of a file's content."""
  return hashlib.sha1(b'blob %d\0' % len(data) + data).hexdigest()


def is_large(name: str) -> bool:
  return not name.endswith(('.json', '.md', '.gitattributes'))


class Hub:
  """The repositories, and what the server does wrong.

  Attributes:
    url: the value of $HF_ENDPOINT.
    repositories: name -> file name -> content.
    tokens: repository -> the only token that may see it.
    requests: (method, path) of all requests.
  """

  def __init__(self):
    self.url = ''
    self.repositories: dict[str, dict[str, bytes]] = {}
    self.tokens: dict[str, str] = {}
    self.requests: list[tuple[str, str]] = []

  def requested(self, part: str) -> list[str]:
    """Returns all paths with a part whose content was asked for."""
    return [
      path for how, path in self.requests if how == 'GET' and part in path
    ]


@contextlib.contextmanager
def running() -> Iterator[Hub]:
  """Runs a hub without repositories."""
  hub = Hub()

  class Handler(_Handler):
    pass

  Handler.hub = hub
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  hub.url = f'http://127.0.0.1:{server.server_port}'
  thread = threading.Thread(target=server.serve_forever, args=(0.01,))
  thread.start()
  try:
    yield hub
  finally:
    server.shutdown()
    thread.join()
    server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  hub: Hub

  def log_message(self, *_):
    pass

  def _answer(self, content, status=200, **headers):
    if not isinstance(content, bytes):
      content = json.dumps(content).encode()
      headers['Content-Type'] = 'application/json'
    self.send_response(status)
    for key, value in headers.items():
      self.send_header(key.replace('_', '-'), str(value))
    self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(content)

  def _refuse(self, status, code):
    self._answer({'error': code}, status, X_Error_Code=code)

  def _token(self):
    return self.headers.get('Authorization', '').removeprefix('Bearer ')

  def _files(self, repository):
    """Returns a repository's files; answers with an error and returns None."""
    files = self.hub.repositories.get(repository)
    if files is None or self.hub.tokens.get(repository) not in (
      None,
      self._token(),
    ):
      self._refuse(401, 'RepoNotFound')
      return None
    return files

  def do_GET(self):
    self.hub.requests.append((self.command, self.path))
    path = self.path.partition('?')[0]
    if found := re.fullmatch(r'/api/models/(\w+/[\w-]+)(/.*)?', path):
      self._get_api(found[1], found[2] or '')
    elif found := re.fullmatch(r'/(\w+/[\w-]+)/resolve/(\w+)/(.+)', path):
      files = self._files(found[1])
      if files is not None and found[3] not in files:
        self._refuse(404, 'EntryNotFound')
      elif files is not None:
        self._get_file(found[3], files[found[3]])
    else:
      self._refuse(404, 'Unknown')

  do_HEAD = do_GET

  def _get_api(self, repository, rest):
    files = self._files(repository)
    if files is None:
      return
    revision = rest.rpartition('/')[2]
    if rest and revision not in ('main', COMMIT):
      self._refuse(404, 'RevisionNotFound')
    elif rest.startswith('/tree'):
      self._answer([_entry(name, data) for name, data in files.items()])
    else:
      siblings = [{'rfilename': name} for name in files]
      self._answer({'id': repository, 'sha': COMMIT, 'siblings': siblings})

  def _get_file(self, name, data):
    etag = blob_id(data)
    headers = {'X_Repo_Commit': COMMIT}
    if is_large(name):
      etag = hashlib.sha256(data).hexdigest()
      headers |= {'X_Linked_Etag': f'"{etag}"', 'X_Linked_Size': len(data)}
    self._answer(data, ETag=f'"{etag}"', **headers)


def _entry(name, data):
  entry = {'type': 'file', 'path': name, 'size': len(data)}
  entry['oid'] = blob_id(data)
  if is_large(name):
    sha256 = hashlib.sha256(data).hexdigest()
    entry['lfs'] = {'oid': sha256, 'size': len(data), 'pointerSize': 130}
  return entry
