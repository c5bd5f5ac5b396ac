"""A process's side of the connection, against a bare socket as the arbiter."""

import contextlib
import json
import socket
import threading
import time

import pytest

from vit_jax import errors
from vit_jax.distributed import cluster
from vit_jax.distributed.member import Member


@pytest.fixture
def joined():
  """A member of two processes that has joined, and the arbiter's side."""
  own, other = socket.socketpair()
  own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
  with other:
    other.settimeout(10)
    member = Member(cluster.Place('127.0.0.1:9', 2, 0), {}, 10, 30, own)
    _tell(other, welcome='process 0')
    member.join_run()
    yield member, other
    with contextlib.suppress(BrokenPipeError):
      _tell(other, own=True)
    member.join(10)
    assert not member.is_alive()


def _tell(other, **message):
  other.sendall(json.dumps(message).encode() + b'\n')


def _values(other, count):
  """Returns the next values that the member gives."""
  values, data = [], b''
  while len(values) < count:
    data += other.recv(1000)
    *lines, data = data.split(b'\n')
    messages = [json.loads(line) for line in lines]
    values += [m['value'] for m in messages if 'value' in m]
  return values


def _start(function, *args):
  """Starts a thread; returns it, and what the function returns or raises."""
  outcome = []

  def call():
    try:
      outcome.append(function(*args))
    except Exception as error:
      outcome.append(error)

  thread = threading.Thread(target=call)
  thread.start()
  return thread, outcome


def test_agreements_of_two_threads_come_after_each_other(joined):
  member, other = joined
  calls = [_start(member.exchange, 'any_true', i) for i in range(2)]
  for _ in range(2):
    [[kind, value]] = _values(other, 1)
    # The other one is not sent before this is answered.
    other.settimeout(0.3)
    with pytest.raises(TimeoutError):
      _values(other, 1)
    other.settimeout(10)
    _tell(other, values=[[kind, value], [kind, 10 + value]])
  for i, (thread, outcome) in enumerate(calls):
    thread.join(10)
    assert outcome == [[i, 10 + i]]


def test_agreement_ends_with_the_run(joined):
  member, other = joined
  thread, outcome = _start(member.exchange, 'any_true', True)
  assert _values(other, 1) == [['any_true', True]]
  _tell(other, end=True)
  thread.join(10)
  [error] = outcome
  assert isinstance(error, errors.HostLostError)
  assert str(error) == 'The run has ended in all processes.'


def test_long_value_goes_as_fast_as_it_is_read(joined):
  member, other = joined
  start = time.monotonic()
  thread, outcome = _start(member.exchange, 'broadcast', 'x' * 400_000)
  received = 0
  while received < 400_000:
    received += len(other.recv(1 << 16))
    time.sleep(0.005)  # The member sends a piece, and has to wait.
  assert time.monotonic() - start < 2
  _tell(other, values=[['broadcast', 1], ['broadcast', None]])
  thread.join(10)
  assert outcome == [[1, None]]
