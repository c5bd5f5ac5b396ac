"""Serves the live page on a port of this machine."""

import contextlib
import http.server
import json
import pathlib
import re
import urllib.parse
from collections.abc import Sequence

from absl import logging
from etils import epath

from vit_jax import pages
from vit_jax.compare import expected
from vit_jax.compare.live import reading

PORT = 6008  # Used if the user names none.
_LOCAL = ('127.0.0.1', 'localhost')
_HERE = pathlib.Path(__file__).parent
_FILES = {
  '/': (_HERE / 'page.html', 'text/html'),
  '/page.css': (_HERE / 'page.css', 'text/css'),
  '/page.js': (_HERE / 'page.js', 'text/javascript'),
  '/style.css': (pages.STYLE, 'text/css'),
}
# The page loads nothing from elsewhere, and runs no script but its own.
_POLICY = (
  "default-src 'none'; img-src data:; connect-src 'self'; script-src 'self';"
  " style-src 'self'; base-uri 'none'; form-action 'none';"
  " frame-ancestors 'none'"
)


class Server(http.server.ThreadingHTTPServer):
  """Answers with the page and its data; listens from the start."""

  daemon_threads = True

  def __init__(
    self,
    folders: Sequence[epath.PathLike],
    metrics: Sequence[str],
    host: str,
    port: str,
    curves: Sequence[expected.Curve] = (),
  ):
    """Finds the runs.

    Args:
      folders: work directories, or folders of them.
      metrics: the only metrics to draw; [] draws all.
      host: the address to listen at.
      port: a number; '' for PORT.
      curves: see `reading.Watcher`.

    Raises:
      ValueError: there are no runs, or the address cannot be used.
    """
    if port and not (port.isascii() and port.isdigit() and int(port) < 2**16):
      raise ValueError(f'--serve={port}: expected a port, such as {PORT}.')
    self.watcher = reading.Watcher(folders, curves)
    self.metrics, self.host = list(metrics), host
    try:
      super().__init__((host, int(port or PORT)), _Handler)
    except OSError as error:
      raise ValueError(
        f'{host}, port {port or PORT}: {error.strerror or error}. Choose'
        ' another port with --serve=PORT, or another --host.'
      ) from error

  def serve(self) -> None:
    """Serves the page until Ctrl-C."""
    with self, contextlib.suppress(KeyboardInterrupt):
      print(
        f'http://{self.host}:{self.server_port}/ shows the runs. Ctrl-C ends'
        ' it.',
        flush=True,
      )
      if self.host not in _LOCAL:
        logging.warning(
          'The page has no password: all who reach port %d of this machine can'
          ' read names and metrics.',
          self.server_port,
        )
      self.serve_forever()


class _Handler(http.server.BaseHTTPRequestHandler):
  server: Server

  def do_GET(self):
    # Another site's page could give its own name this machine's address, and
    # then read the answers.
    asked = self.headers.get('Host', '').partition(':')[0]
    if self.server.host in _LOCAL and asked not in _LOCAL:
      self.send_error(403, 'Ask for localhost')
      return
    url = urllib.parse.urlsplit(self.path)
    if url.path == '/data.json':
      since = re.fullmatch('since=([0-9]{1,18})', url.query)
      news = self.server.watcher.news(int(since[1]) if since else 0)
      news['only'] = self.server.metrics
      self._send(json.dumps(news, allow_nan=False).encode(), 'application/json')
    elif url.path in _FILES:
      file, kind = _FILES[url.path]
      self._send(file.read_bytes(), kind)
    else:
      self.send_error(404)

  def _send(self, content: bytes, kind: str) -> None:
    self.send_response(200)
    for header, value in (
      ('Content-Type', f'{kind}; charset=utf-8'),
      ('Content-Length', str(len(content))),
      ('Content-Security-Policy', _POLICY),
      ('X-Content-Type-Options', 'nosniff'),
      ('Cache-Control', 'no-store'),
    ):
      self.send_header(header, value)
    with contextlib.suppress(ConnectionError):  # The browser has left.
      self.end_headers()
      self.wfile.write(content)

  def log_message(self, *_):
    """Logs nothing: the page asks every few seconds."""
