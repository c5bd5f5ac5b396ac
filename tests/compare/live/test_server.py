"""Guards: the page's server answers only what it should, and only here."""

import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest

from tests.compare.live import runs
from vit_jax.compare.live import server


@pytest.fixture
def served(tmp_path):
  runs.make(tmp_path / '<script>alert(1)', [1, 2])
  with server.Server([tmp_path], ['train/loss'], '127.0.0.1', '0') as one:
    threading.Thread(target=one.serve_forever, daemon=True).start()
    yield one
    one.shutdown()


def _get(served, path, host='localhost'):
  connection = http.client.HTTPConnection('127.0.0.1', served.server_port)
  connection.request('GET', path, headers={'Host': host})
  answer = connection.getresponse()
  return answer, answer.read().decode()


def test_the_page_and_its_data(served):
  for path, kind in (
    *(('/', 'text/html'), ('/page.css', 'text/css')),
    *(('/style.css', 'text/css'), ('/page.js', 'text/javascript')),
  ):
    answer, text = _get(served, path)
    assert (answer.status, kind) == (200, answer.msg.get_content_type())
    assert "default-src 'none'" in answer.headers['Content-Security-Policy']
    # Nothing from elsewhere, and no way to turn a name into HTML.
    assert 'https:' not in text
    assert 'innerHTML' not in text
  answer, text = _get(served, '/data.json?since=0')
  news = json.loads(text)
  assert answer.headers['Content-Type'].startswith('application/json')
  assert news['names'] == ['<script>alert(1)']
  assert news['only'] == ['train/loss']
  look = news['look']
  assert json.loads(_get(served, f'/data.json?since={look}')[1])['runs'] == {}
  assert json.loads(_get(served, '/data.json?since=-1x')[1])['runs'] != {}


def test_other_requests_are_refused(served):
  for path in ('/server.py', '/../../etc/passwd', '//etc/passwd'):
    assert _get(served, path)[0].status == 404
  # A foreign name that points to this machine, and none.
  for host in ('evil.example', 'evil.example:80', ''):
    assert _get(served, '/data.json', host=host)[0].status == 403
  for host in ('127.0.0.1:80', 'localhost'):
    assert _get(served, '/data.json', host=host)[0].status == 200


@pytest.mark.gate
def test_the_command(tmp_path, command):
  runs.make(tmp_path / 'a', [1])
  words = ('vit_jax.compare', tmp_path, '--serve=0')
  refused = command(*words, '--csv=a.csv')
  assert refused.returncode == 1
  assert refused.stderr.startswith('error: --serve')
  with subprocess.Popen(
    [sys.executable, '-m', *words, '--host=0.0.0.0'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    # Tests that a shell started in the background ignore Ctrl-C, and so would
    # the server.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  ) as process:
    assert process.stdout.readline().startswith('http://0.0.0.0:')
    assert 'no password' in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    try:
      assert process.wait(20) == 0
    finally:
      process.kill()  # Or leaving the block waits for ever.
