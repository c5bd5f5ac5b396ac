"""The arbiter alone, against bare sockets."""

import json
import socket
import time

import pytest

from vit_jax.distributed.arbiter import Arbiter
from vit_jax.distributed.roster import Roster


@pytest.fixture
def served():
  """Process 0's socket and the port of an arbiter that waits 1 s."""
  listener = socket.create_server(('127.0.0.1', 0))
  own, other = socket.socketpair()
  roster = Roster(3, (), 1, 10, now=time.monotonic())
  arbiter = Arbiter(listener, other, roster, 10)
  port = listener.getsockname()[1]
  arbiter.start()
  with own:
    yield arbiter, own, port
  arbiter.join(10)
  assert not arbiter.is_alive()


def _hello(sock, process_id):
  hello = {
    'protocol': 1,
    'process_id': process_id,
    'num_processes': 3,
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
