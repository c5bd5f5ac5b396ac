"""Guards: the arbiter serves processes, and strangers cannot disturb it.

The processes are bare sockets.
"""

import contextlib
import errno
import json
import math
import socket
import statistics
import time

import pytest

from tests.runtime.distributed.background import background
from vit_jax.runtime.distributed import arbiter as arbiter_lib
from vit_jax.runtime.distributed.arbiter import Arbiter
from vit_jax.runtime.distributed.roster import Limits, Peer, Roster

TOKEN = 'ab12'


class _Listener(socket.socket):
  """A listener that fails while `full`, as if too many files were open."""

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


class _Served:
  """A running arbiter, process 0's socket to it, and a future of its end."""

  def __init__(self, loop, listener, num_processes, start):
    self.address = listener.getsockname()
    self.own, other = socket.socketpair()
    self.own.settimeout(10)
    limits = Limits(start, 10)
    first = Peer(0, 'h', 1, {})
    now = time.monotonic()
    self.roster = Roster(first, num_processes, (), limits, now)
    self.arbiter = Arbiter(listener, other, self.roster, TOKEN)
    self.finished = loop.start(self.arbiter.serve())

  def connect(self, **changes):
    """Connects, and says hello if any of its fields are given."""
    sock = socket.create_connection(self.address, 10)
    if changes:
      hello = {
        'protocol': 2,
        'token': TOKEN,
        'nonce': 'n',
        'num_processes': self.roster.num_processes,
        'host': 'h',
        'pid': 1,
        'identity': {},
        **changes,
      }
      _send(sock, hello=hello)
    return sock


@pytest.fixture
def serve(listener):
  with background() as loop, contextlib.ExitStack() as stack:
    served = []

    def start(num_processes=3, start=1.0):
      served.append(_Served(loop, listener, num_processes, start))
      return served[0]

    yield start
    for each in served:
      each.own.close()
      stack.callback(each.finished.result, 15)


def _send(sock, **message):
  sock.sendall(json.dumps(message).encode() + b'\n')


def _messages(sock):
  """Returns all messages until the connection ends, except signs of life."""
  data = b''
  with contextlib.suppress(ConnectionResetError):
    while more := sock.recv(1000):
      data += more
  found = [json.loads(line) for line in data.splitlines()]
  return [each for each in found if 'beat' not in each]


def _next(sock):
  """Returns the next message, except signs of life."""
  while True:
    line = b''
    while not line.endswith(b'\n'):
      byte = sock.recv(1)
      assert byte, line
      line += byte
    message = json.loads(line)
    if 'beat' not in message:
      return message


def test_verdict_is_read_before_the_end(serve):
  served = serve()
  with served.connect(process_id=1) as one:
    text = 'Process 2 of 3 did not join within 1 s; joined: 0 on h, 1 on h.'
    [message] = _messages(one)
    assert text in message['lost']['text']
    # The arbiter waits until the others have read the verdict and closed.
    time.sleep(0.3)
    assert not served.finished.done()
  served.finished.result(2)
  assert text in _messages(served.own)[-1]['lost']['text']
  with pytest.raises(ConnectionRefusedError):
    served.connect()


def test_process_0_gives_up(serve):
  served = serve()
  with served.connect(process_id=1) as one:
    time.sleep(0.3)
    served.own.close()
    # There is no verdict, because a new process 0 may come.
    assert _messages(one) == []
  served.finished.result(2)


def test_only_the_mismatched_process_is_refused(serve):
  served = serve(start=60)
  with (
    served.connect(process_id=1, num_processes=5) as other,
    served.connect(process_id=1) as one,
    served.connect(process_id=1, nonce='m') as twin,
    served.connect(process_id=2, identity={'code': 'x'}) as changed,
    served.connect(process_id=2) as two,
  ):
    for sock, text in (
      (other, 'Process 0 expects 3 processes, and process 1'),
      (twin, 'Two processes have the same process id'),
      (changed, 'Processes differ in their code'),
    ):
      [message] = _messages(sock)
      assert text in message['refused']['text']
    for sock in (one, two, served.own):
      assert _next(sock) == {'welcome': {'text': 'process 0 on h (pid 1)'}}


@pytest.mark.parametrize('token', ['', 'ab13', 'é'])
def test_a_process_of_another_launch_gets_no_message(serve, token):
  served = serve()
  with served.connect(process_id=1, token=token) as other:
    assert _messages(other) == []
  assert served.roster.peers.keys() == {0}
  assert served.roster._sent_away == {}


FALSE = [
  {'process_id': math.inf},
  {'process_id': math.nan},
  {'process_id': 1.5},
  {'process_id': 0},
  {'process_id': 7},
  {'process_id': 1, 'identity': {'code': {'a': {'b': 1}}}},
  {'process_id': 1, 'host': ['h']},
  {'process_id': 1, 'identity': {'code': 'x' * (1 << 18)}},
]


@pytest.mark.parametrize('started', [False, True])
def test_strangers_do_not_disturb_the_run(serve, started):
  """Strangers stay silent, or send garbage, part of a hello or a false one."""
  served = serve(num_processes=2, start=60)
  with contextlib.ExitStack() as stack:

    def join():
      one = stack.enter_context(served.connect(process_id=1))
      for sock in (one, served.own):
        assert 'welcome' in _next(sock)
      return one

    one = join() if started else None
    for hello in FALSE:
      stack.enter_context(served.connect(**hello))
    for data in (
      *(b'GET / HTTP/1.1\r\n\r\n', b'{"hello": {"proto', b'\xff' * 5000),
      *(b'[' * 200_000 + b'\n', b'x' * 400_000, b'{"done": {}}\n', b'\n\n\n'),
    ):
      with contextlib.suppress(ConnectionError):
        stack.enter_context(served.connect()).sendall(data)
    slow = stack.enter_context(served.connect())
    for _ in range(500):
      stack.enter_context(served.connect())
    with contextlib.suppress(ConnectionError):
      slow.sendall(b'{')
    one = one or join()
    _send(one, any_true={'value': True})
    _send(served.own, any_true={'value': False})
    for sock in (one, served.own):
      assert _next(sock) == {'any_true': {'value': True}}
    assert len(served.arbiter._strangers) <= 258


def test_the_oldest_stranger_is_disconnected_first(serve, monkeypatch):
  monkeypatch.setattr(arbiter_lib, '_STRANGERS', 2)
  served = serve(num_processes=2, start=60)
  strangers = []
  for _ in range(6):
    strangers.append(served.connect())
    time.sleep(0.02)
  for sock in strangers[:2]:
    assert _messages(sock) == []
  strangers[2].settimeout(0.1)
  with pytest.raises(TimeoutError):
    strangers[2].recv(1)


def test_a_stranger_is_disconnected_after_a_time(serve, monkeypatch):
  monkeypatch.setattr(arbiter_lib, '_HELLO', 0.3)
  served = serve(start=60)
  with served.connect() as slow:
    began = time.monotonic()
    with pytest.raises(ConnectionError):  # noqa: PT012
      while time.monotonic() - began < 5:
        slow.sendall(b'{')
        time.sleep(0.1)
    assert time.monotonic() - began < 2


def test_a_bug_in_one_connection_ends_only_that_connection(serve, monkeypatch):
  served = serve(num_processes=2, start=60)
  enter = served.roster.enter

  def fail(now, hello):
    if hello['host'] == 'bad':
      raise KeyError('unforeseen')
    return enter(now, hello)

  monkeypatch.setattr(served.roster, 'enter', fail)
  with served.connect(process_id=1, host='bad') as bad:
    assert _messages(bad) == []
  with served.connect(process_id=1) as one:
    assert 'welcome' in _next(one)


def test_a_bug_of_the_arbiter_ends_the_run_and_is_named(serve, monkeypatch):
  served = serve(num_processes=2, start=60)
  with served.connect(process_id=1) as one:
    assert 'welcome' in _next(one)

    def fail(now):
      raise KeyError('unforeseen')

    monkeypatch.setattr(served.roster, 'verdict', fail)
    text = "Process 0 cannot watch the others anymore: KeyError('unforeseen')."
    assert _messages(one) == [{'lost': {'text': text}}]


def test_connections_recover_from_too_many_open_files(serve, listener):
  served = serve(start=3)
  listener.full = True
  with served.connect(process_id=1) as one:
    time.sleep(0.5)
    assert 1 <= listener.tries < 300  # asyncio tries `backlog` times a second.
    listener.full = False
    # The waiting connection gets in, and receives the verdict.
    assert 'joined: 0 on h, 1 on h.' in _messages(one)[-1]['lost']['text']


def test_a_broadcast_reaches_each_other_process_once(serve):
  served = serve(start=60)
  with served.connect(process_id=1) as one, served.connect(process_id=2) as two:
    for sock in (one, two, served.own):
      assert 'welcome' in _next(sock)
    value = '"' + 'é' * 500_000 + '"'
    _send(one, broadcast={'value': ''})
    _send(two, broadcast={'value': '[1]'})  # Only process 0's value counts.
    _send(served.own, broadcast={'value': value})
    assert _next(served.own) == {'broadcast': {'value': ''}}
    for sock in (one, two):
      file = sock.makefile('rb')
      line = next(line for line in file if b'beat' not in line)
      assert json.loads(line) == {'broadcast': {'value': value}}
    for sock in (one, two, served.own):
      _send(sock, any_true={'value': False})
    assert _next(served.own) == {'any_true': {'value': False}}


def test_different_calls_are_an_error_that_names_them(serve):
  served = serve(num_processes=2, start=60)
  with served.connect(process_id=1) as one:
    for sock in (one, served.own):
      assert 'welcome' in _next(sock)
    _send(one, any_true={'value': True})
    _send(served.own, broadcast={'value': '1'})
    text = (
      'The processes wait for each other in different calls:'
      " ['broadcast', 'any_true']."
    )
    for sock in (one, served.own):
      assert _next(sock) == {'different': {'text': text}}


@pytest.mark.parametrize(
  'lines',
  [
    b'{"any_true": {"value": true}}\n' * 2,
    b'{"any_true": {"value": 1}}\n',
    b'{"failed": {"code": 1, "text": "", "grace": Infinity}}\n',
    b'nonsense\n',
  ],
)
def test_a_process_that_sends_invalid_messages_is_lost(serve, lines):
  served = serve(num_processes=2, start=60)
  with served.connect(process_id=1) as one:
    assert 'welcome' in _next(one)
    assert 'welcome' in _next(served.own)
    one.sendall(lines)
    assert (
      'Lost process 1 on h (pid 1): sent an invalid message'
      in _next(served.own)['lost']['text']
    )


def test_64_processes_agree_in_less_than_a_tenth_of_a_second(serve):
  served = serve(num_processes=64, start=60)
  with contextlib.ExitStack() as stack:
    socks = [served.own]
    for i in range(1, 64):
      sock = stack.enter_context(served.connect(process_id=i, nonce=f'{i}'))
      socks.append(sock)
    files = [stack.enter_context(sock.makefile('rb')) for sock in socks]

    def hear():
      for file in files:
        yield json.loads(next(line for line in file if b'beat' not in line))

    assert all('welcome' in message for message in hear())
    took = []
    for i in range(21):
      began = time.monotonic()
      for j, sock in enumerate(socks):
        _send(sock, any_true={'value': i == j})
      assert list(hear()) == [{'any_true': {'value': True}}] * 64
      took.append(time.monotonic() - began)
  assert statistics.median(took) < 0.1
