"""The arbiter alone, against bare sockets."""

import errno
import json
import socket
import time

import pytest

from vit_jax.distributed import arbiter as arbiter_lib
from vit_jax.distributed.arbiter import Arbiter
from vit_jax.distributed.roster import Roster


class _Listener(socket.socket):
  """Cannot accept as long as `full`, as if too many files were open."""

  full = False
  tries = 0

  def accept(self):
    self.tries += 1
    if self.full:
      raise OSError(errno.EMFILE, 'Too many open files')
    return super().accept()


@pytest.fixture
def listener():
  server = socket.create_server(('127.0.0.1', 0))
  return _Listener(fileno=server.detach())


@pytest.fixture
def served(listener):
  """Process 0's socket and the port of an arbiter that waits 1 s."""
  own, other = socket.socketpair()
  roster = Roster(3, (), 1, 10, now=time.monotonic())
  arbiter = Arbiter(listener, other, roster, 10)
  port = listener.getsockname()[1]
  arbiter.start()
  with own:
    yield arbiter, own, port
  arbiter.join(10)
  assert not arbiter.is_alive()


def _hello(sock, process_id, num_processes=3):
  hello = {
    'protocol': 1,
    'process_id': process_id,
    'num_processes': num_processes,
    'host': 'h',
    'pid': 1,
    'facts': {},
  }
  sock.sendall(json.dumps({'hello': hello}).encode() + b'\n')
  sock.settimeout(10)


def _messages(sock):
  """Returns all until the other side sends no more."""
  data = b''
  while more := sock.recv(1000):
    data += more
  return [json.loads(line) for line in data.splitlines()]


def test_verdict_is_read_before_the_end(served):
  arbiter, own, port = served
  with socket.create_connection(('127.0.0.1', port)) as one:
    _hello(own, 0)
    _hello(one, 1)
    text = 'Process 2 of 3 did not join within 1 s; joined: 0 on h, 1 on h.'
    messages = _messages(one)
    assert messages[0] == {'beat': True}
    assert text in messages[-1]['lost']
    # Who has read all has still to close.
    assert not arbiter.drained.wait(0.5)
  assert arbiter.drained.wait(2)
  assert text in _messages(own)[-1]['lost']
  with pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', port))


def test_process_0_gives_up(served):
  arbiter, own, port = served
  with socket.create_connection(('127.0.0.1', port)) as one:
    _hello(own, 0)
    _hello(one, 1)
    time.sleep(0.5)
    own.close()
    # No verdict: a new process 0 may come.
    assert _messages(one) == [{'beat': True}]
  assert arbiter.drained.wait(2)


def test_stranger_is_sent_away_alone(served):
  _, own, port = served
  address = ('127.0.0.1', port)
  _hello(own, 0)
  with (
    socket.create_connection(address) as stranger,
    socket.create_connection(address) as one,
    socket.create_connection(address) as two,
  ):
    _hello(stranger, 1, num_processes=5)
    [message] = _messages(stranger)
    assert 'The number of processes is 5 to process 1' in message['refused']
    for i, sock in ((1, one), (2, two)):
      _hello(sock, i)
    for sock in (one, two):
      assert b'welcome' in sock.recv(1000) + sock.recv(1000)
    own.close()  # Ends the run.


def test_too_many_open_files(served, listener, monkeypatch):
  monkeypatch.setattr(arbiter_lib, '_DEAF', 0.5)
  _, own, port = served
  _hello(own, 0)
  listener.full = True
  with socket.create_connection(('127.0.0.1', port)) as one:
    _hello(one, 1)
    time.sleep(0.3)
    assert listener.tries == 1
    listener.full = False
    # It was kept waiting, and hears the verdict.
    assert 'joined: 0 on h, 1 on h.' in _messages(one)[-1]['lost']
