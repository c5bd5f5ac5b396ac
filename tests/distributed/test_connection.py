"""Messages over a socket, in pieces, too long, or of something else."""

import os
import socket

import pytest

from vit_jax.distributed import connection


@pytest.fixture
def pair():
  one, other = socket.socketpair()
  yield connection.Connection(one), other
  one.close()
  other.close()


def _pass(link, other, data):
  while data:  # More than the network takes at once.
    data = data[other.send(data[:50_000]) :]
    link.receive()


def test_messages_in_pieces(pair):
  link, other = pair
  other.sendall(b'{"a": 1}\n{"b"')
  assert link.receive() == [{'a': 1}]
  assert link.receive() == []
  other.sendall(b': [2, null]}\n')
  other.close()
  assert link.receive() == [{'b': [2, None]}]
  assert link.closed == 'connection closed'


def test_what_was_sent_before_the_end_is_read(pair):
  link, other = pair
  other.sendall(b'{"lost": 1}\n')
  other.close()
  link.send(beat=True)  # Fails.
  assert link.receive() == [{'lost': 1}]


@pytest.mark.parametrize(
  'data', [b'GET /\n', b'3\n', b'[' * 50000 + b'\n', b'\xff\n', b'x' * 300_000]
)
def test_what_is_no_message(data):
  one, other = socket.socketpair()
  with one, other:
    link = connection.Connection(one, connection.HELLO_BYTES)
    with pytest.raises(ValueError):  # noqa: PT011
      _pass(link, other, data)


def test_more_than_the_network_takes_at_once(pair):
  link, other = pair
  text = 'x' * 3_000_000
  link.send(text=text)
  received = b''
  while not received.endswith(b'\n'):
    received += other.recv(1 << 20)
    link.flush()
  assert len(received) == len(text) + len(b'{"text": ""}\n')


def test_nobody_reads(pair):
  link, other = pair
  other.close()
  link.send(a=1)
  assert link.receive() == []
  assert link.closed == 'connection closed'
  link.send(a=2)


@pytest.mark.filterwarnings('ignore:.*fork:RuntimeWarning')
def test_forked_child_does_not_keep_it_open():
  one, other = socket.socketpair()
  link = connection.Connection(one)
  read, write = os.pipe()
  child = os.fork()
  if child == 0:
    os.close(write)
    os.read(read, 1)  # Until the parent closes it.
    os._exit(0)
  try:
    link.close()
    other.settimeout(5)
    assert other.recv(1) == b''
  finally:
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)
    other.close()
