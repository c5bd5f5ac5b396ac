"""Guards: a process's side of the connection; a bare socket is the arbiter."""

import contextlib
import json
import socket
import time

import pytest

from tests.runtime.distributed.background import background
from vit_jax.runtime import errors
from vit_jax.runtime.distributed import cluster, messages
from vit_jax.runtime.distributed.member import Member
from vit_jax.runtime.distributed.roster import Limits


class _Joined:
  """A member of a run of two processes that has joined; plays the arbiter."""

  def __init__(self, loop, lost_timeout):
    self.loop, self.ended = loop, []
    own, self.other = socket.socketpair()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    self.other.settimeout(10)
    place = cluster.Place('127.0.0.1:9', 2, 0)
    limits = Limits(10, lost_timeout)
    self.member = Member(place, {}, '', limits, self._end)
    self.tell(welcome={'text': 'process 0 on h (pid 1)'})
    loop.call(self.member.join(own))

  async def _end(self, error):
    self.ended.append(error)

  def tell(self, **message):
    self.other.sendall(json.dumps(message).encode() + b'\n')

  def hears(self, count):
    """Returns the next messages of the member, except signs of life."""
    found, data = [], b''
    while len(found) < count:
      data += self.other.recv(1000)
      *lines, data = data.split(b'\n')
      found += [json.loads(line) for line in lines if b'beat' not in line]
    return found

  def wait_for_the_end(self):
    deadline = time.monotonic() + 10
    while not self.ended and time.monotonic() < deadline:
      time.sleep(0.02)
    [error] = self.ended
    return error


@pytest.fixture
def join():
  with background() as loop, contextlib.ExitStack() as stack:

    def start(lost_timeout=30):
      joined = _Joined(loop, lost_timeout)
      stack.enter_context(joined.other)
      return joined

    yield start


@pytest.fixture
def joined(join):
  return join()


def _exchange(joined, kind, value):
  return joined.loop.start(joined.member.exchange(kind, value))


def test_calls_of_two_threads_are_sent_one_after_the_other(joined):
  calls = [_exchange(joined, 'any_true', flag) for flag in (False, True)]
  for i, call in enumerate(calls):
    assert joined.hears(1) == [{'any_true': {'value': bool(i)}}]
    # The member sends the other call only after this answer.
    joined.other.settimeout(0.2)
    with pytest.raises(TimeoutError):
      joined.hears(1)
    joined.other.settimeout(10)
    joined.tell(any_true={'value': bool(i)})
    assert call.result(10) is bool(i)


def test_agreement_ends_with_the_run(joined):
  call = _exchange(joined, 'any_true', True)
  assert joined.hears(1) == [{'any_true': {'value': True}}]
  joined.tell(end={'orderly': True})
  with pytest.raises(errors.HostLostError, match='The run has ended in all'):
    call.result(10)


def test_different_agreements(joined):
  call = _exchange(joined, 'any_true', True)
  joined.hears(1)
  joined.tell(different={'text': 'different calls: [1, 2]'})
  with pytest.raises(RuntimeError, match=r'different calls: \[1, 2\]'):
    call.result(10)


def test_a_long_value_is_sent_as_fast_as_it_is_read(joined):
  start = time.monotonic()
  call = _exchange(joined, 'broadcast', 'x' * 400_000)
  received = 0
  while received < 400_000:
    received += len(joined.other.recv(1 << 16))
    time.sleep(0.005)  # The member must wait before it sends more.
  assert time.monotonic() - start < 2
  joined.tell(broadcast={'value': ''})
  assert call.result(10) == ''


def test_a_too_long_value_is_an_error(joined):
  call = _exchange(joined, 'broadcast', 'x' * messages.LONG)
  with pytest.raises(
    ValueError, match='too long for broadcast: 16777245 bytes'
  ):
    call.result(20)


@pytest.mark.parametrize(
  ('message', 'kind', 'code'),
  [
    ({'lost': {'text': 'Lost.'}}, errors.HostLostError, 76),
    ({'ended': {'text': 'Bad.', 'code': 1}}, errors.OtherProcessError, 1),
    ({'ended': {'text': 'Stop.', 'code': 130}}, errors.OtherProcessError, 130),
  ],
)
def test_a_verdict_ends_a_process_that_waits(joined, message, kind, code):
  call = _exchange(joined, 'any_true', True)
  joined.tell(**message)
  error = joined.wait_for_the_end()
  assert type(error) is kind
  assert error.exit_code == code
  assert str(error) == next(iter(message.values()))['text']
  # Only one thread reports the error: the main thread raises none.
  late = joined.loop.start(joined.member.fail(1, 'ValueError: Gloo', 3))
  time.sleep(0.2)
  assert not call.done()
  assert not late.done()
  for each in (call, late):
    each.cancel()


@pytest.mark.parametrize(
  ('message', 'code'),
  [
    ({'own': {}}, None),
    ({'lost': {'text': 'Lost.'}}, 76),
    ({'ended': {'text': 'Bad.', 'code': 3}}, 3),
  ],
)
def test_error_that_another_process_caused(joined, message, code):
  call = joined.loop.start(joined.member.fail(1, 'ValueError: bad', 3))
  assert joined.hears(1) == [
    {'failed': {'code': 1, 'text': 'ValueError: bad', 'grace': 3}}
  ]
  joined.tell(**message)
  error = call.result(10)
  assert (error and error.exit_code) == code
  assert joined.ended == []


def test_orderly_end(joined):
  call = joined.loop.start(joined.member.finish(5))
  assert joined.hears(1) == [{'done': {}}]
  joined.tell(end={'orderly': True})
  assert call.result(10) is True


def test_finish_times_out_if_other_processes_still_work(joined):
  call = joined.loop.start(joined.member.finish(0.3))
  with pytest.raises(
    errors.HostLostError, match='Other processes are still work'
  ):
    call.result(10)


@pytest.mark.parametrize(
  'line',
  [
    b'{"any_true": {"value": 1}}',
    b'{"any_true": {"value": true}}',  # The member did not ask.
    b'{"lost": {"text": NaN}}',
    b'{"ended": {"text": "", "code": 0}}',
    b'[' * 100_000,
  ],
)
def test_process_0_is_lost_if_it_sends_invalid_messages(joined, line):
  joined.other.sendall(line + b'\n')
  text = 'Lost process 0 on h (pid 1): sent an invalid message'
  assert text in str(joined.wait_for_the_end())


def test_process_0_is_lost_if_it_disconnects(joined):
  joined.other.close()
  text = 'Lost process 0 on h (pid 1): connection closed.'
  assert str(joined.wait_for_the_end()) == text


def test_process_0_is_lost_if_it_is_silent(join):
  joined = join(lost_timeout=0.5)
  text = 'Lost process 0 on h (pid 1): no sign of life for 0.5 s.'
  assert str(joined.wait_for_the_end()) == text


def test_messages_sent_before_the_connection_closed_are_read(joined):
  call = joined.loop.start(joined.member.finish(5))
  # Process 0 ends the run once all processes are done. If it closed earlier,
  # the write could fail before the message is read.
  assert joined.hears(1) == [{'done': {}}]
  joined.tell(end={'orderly': True})
  joined.other.close()
  assert call.result(10) is True
  assert joined.ended == []


def test_a_long_command_line():
  with background() as loop:
    place = cluster.Place('127.0.0.1:9', 2, 1)
    identity = {'command line': ['x' * 300_000]}
    member = Member(place, identity, '', Limits(1, 1))
    with pytest.raises(ValueError, match='The command line is too long to be'):
      loop.call(member.join(None))
