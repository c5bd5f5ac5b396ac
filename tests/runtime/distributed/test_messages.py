"""Guards: only valid messages pass between processes."""

import asyncio
import json
import os
import socket

import pytest

from vit_jax.runtime.distributed import messages

HELLO = {
  'protocol': 2,
  'token': 'ab12',
  'nonce': 'cd34',
  'process_id': 1,
  'num_processes': 2,
  'host': 'host-1',
  'pid': 12,
  'identity': {'words': ['--a'], 'versions': {'jax': '0.12'}, 'code': 'f00'},
}
LONE = '"\\ud800"'  # A lone surrogate, which no log can encode.


def _decode(line, table=messages.FROM_PROCESS):
  return messages.decode(line.encode(), table)


def test_hello():
  assert _decode(json.dumps({'hello': HELLO})) == ('hello', HELLO)
  # Unknown fields are left out; older programs send fewer fields.
  older = {k: v for k, v in HELLO.items() if k not in ('token', 'nonce')}
  assert _decode(json.dumps({'hello': {**older, 'new': [1]}})) == (
    'hello',
    {**HELLO, 'token': '', 'nonce': ''},
  )


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('protocol', ['0', '1001', 'true', '2.0', '"2"']),
    ('token', ['1', f'"{"a" * 65}"', '"\\n"']),
    ('nonce', ['null', f'"{"a" * 65}"']),
    # Process 0 itself does not come over the network.
    ('process_id', ['0', '-1', 'Infinity', 'NaN', '1e3', 'true', '1' * 5000]),
    ('num_processes', ['1', '1000001', '-Infinity', '[2]']),
    ('host', [f'"{"h" * 256}"', '"a\\nb"', '"\\u001b[2J"', LONE, '{}']),
    ('pid', ['0', '1e1', str(1 << 32), 'false']),
    (
      'identity',
      ['[]', '3', '{"a": 1}', '{"a": [1]}', '{"a": {"b": [""]}}']
      + ['{"a": [[]]}', '{"a": null}', '{"a\\n": ""}'],
    ),
  ],
)
def test_fields_of_hello(name, values):
  for value in values:
    fields = json.dumps({k: v for k, v in HELLO.items() if k != name})
    line = f'{{"hello": {fields[:-1]}, "{name}": {value}}}}}'
    with pytest.raises(messages.InvalidError):
      _decode(line)
  fields = {k: v for k, v in HELLO.items() if k != name}
  if name not in ('token', 'nonce'):
    with pytest.raises(messages.InvalidError, match=f'the {name} of hello'):
      _decode(json.dumps({'hello': fields}))


@pytest.mark.parametrize(
  ('line', 'table'),
  [
    ('{"failed": {"code": 0, "text": "", "grace": 3}}', 'FROM_PROCESS'),
    ('{"failed": {"code": 256, "text": "", "grace": 3}}', 'FROM_PROCESS'),
    ('{"failed": {"code": 1, "text": "a\\nb", "grace": 3}}', 'FROM_PROCESS'),
    ('{"failed": {"code": 1, "text": "", "grace": NaN}}', 'FROM_PROCESS'),
    ('{"any_true": {"value": 1}}', 'FROM_PROCESS'),
    ('{"broadcast": {"value": null}}', 'FROM_PROCESS'),
    ('{"lost": {"text": "x"}}', 'FROM_PROCESS'),
    ('{"hello": {}}', 'FROM_ARBITER'),
    ('{"lost": {"text": 3}}', 'FROM_ARBITER'),
    ('{"lost": {}}', 'FROM_ARBITER'),
    (f'{{"lost": {{"text": "{"x" * 32769}"}}}}', 'FROM_ARBITER'),
    ('{"ended": {"text": "", "code": true}}', 'FROM_ARBITER'),
    ('{"end": {"orderly": 1}}', 'FROM_ARBITER'),
    ('{"any_true": {"value": "yes"}}', 'FROM_ARBITER'),
    ('{"beat": {}, "end": {"orderly": true}}', 'FROM_ARBITER'),
    ('{"beat": true}', 'FROM_ARBITER'),
    # Unknown fields are ignored, but NaN is not JSON.
    ('{"beat": {"unknown": NaN}}', 'FROM_ARBITER'),
    ('{"beat": {"unknown": -Infinity}}', 'FROM_ARBITER'),
    ('GET / HTTP/1.1', 'FROM_ARBITER'),
    ('3', 'FROM_ARBITER'),
    ('{}', 'FROM_ARBITER'),
    ('[' * 100_000, 'FROM_ARBITER'),
    ('{"a":' * 100_000, 'FROM_ARBITER'),
  ],
)
def test_invalid_messages_are_refused(line, table):
  with pytest.raises(messages.InvalidError):
    _decode(line, getattr(messages, table))


def test_invalid_utf8_is_refused():
  with pytest.raises(messages.InvalidError):
    messages.decode(b'\xff\xfe\n', messages.FROM_ARBITER)


def test_every_text_can_be_sent():
  line = messages.encode('lost', text='a\n\x1b\ud800é' + 'x' * 40_000)
  assert messages.decode(line, messages.FROM_ARBITER) == (
    'lost',
    {'text': 'a   é' + 'x' * (32_768 - 5)},
  )


def _read(*pieces, limit=messages.SHORT):
  """Sends pieces and closes; returns the messages, and why they ended."""

  async def read():
    one, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=one, limit=limit)
    found = []
    with other:
      other.setblocking(False)
      for piece in pieces:
        await asyncio.get_running_loop().sock_sendall(other, piece)
        await asyncio.sleep(0)
    try:
      while True:
        found.append(await messages.read(reader, messages.FROM_PROCESS))
    except messages.EndError as error:
      return found, str(error)
    finally:
      writer.close()

  return asyncio.run(read())


def test_messages_in_pieces():
  assert _read(b'{"beat": {}}\n{"do', b'ne": {}}', b'\n{"beat"') == (
    [('beat', {}), ('done', {})],
    'connection closed',
  )


def test_too_long_lines_are_refused():
  beat = b'{"beat": {}}'
  assert _read(beat + b' ' * 88 + b'\n', limit=100)[0] == [('beat', {})]
  for end in (b'\n', b''):
    found, why = _read(beat, b' ' * 300, end, limit=100)
    assert (found, why) == ([], 'sent an invalid message (too long)')


@pytest.mark.filterwarnings('ignore:.*fork:DeprecationWarning')
@pytest.mark.filterwarnings('ignore:.*fork:RuntimeWarning')
def test_forked_child_does_not_keep_connections_open():
  async def fork():
    server = socket.create_server(('127.0.0.1', 0))
    one, other = socket.socketpair()
    messages.track(server)
    _, writer = await asyncio.open_connection(sock=one)
    messages.track(writer)
    release, wait = os.pipe()
    child = os.fork()
    if child == 0:
      os.close(wait)
      os.read(release, 1)  # Waits until the parent closes the pipe.
      os._exit(0)
    try:
      address = server.getsockname()
      writer.close()
      server.close()
      await asyncio.sleep(0.1)
      other.settimeout(5)
      assert other.recv(1) == b''
      socket.create_server(address).close()
    finally:
      os.close(wait)
      os.close(release)
      os.waitpid(child, 0)
      other.close()

  asyncio.run(fork())
