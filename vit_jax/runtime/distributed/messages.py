"""The messages between processes: one JSON object per line, all checked.

A line is `{KIND: {FIELD: VALUE, ...}}`. Two tables list the kinds that each
side may send, and the values that their fields may have. Everything else is
refused here: anybody can connect to the port, and a value of a wrong type or
size would cause an error far away.
"""

import asyncio
import json
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any

PROTOCOL = 2
# Bytes of a line. The short limit keeps strangers from filling the memory; the
# long one is for what process 0 sends.
SHORT, LONG = 1 << 18, 1 << 24
_MOST = 1_000_000  # Processes.
_TEXT = 1 << 15  # Characters; the errors of 16 processes fit.

Table = Mapping[str, Mapping[str, Callable[[Any], bool]]]


class EndError(ConnectionError):
  """The other side sends nothing more; the text says why."""


class InvalidError(EndError):
  """The other side sent an invalid message."""

  def __init__(self, what: str):
    super().__init__(f'sent an invalid message ({what})')


# ---- Checks ------------------------------------------------------------------


def _is_bool(value: Any) -> bool:
  return type(value) is bool


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
  # A bool is an int to isinstance.
  return lambda value: type(value) is int and low <= value <= high


def _is_string(longest: int) -> Callable[[Any], bool]:
  return lambda value: type(value) is str and len(value) <= longest


def _is_text(longest: int) -> Callable[[Any], bool]:
  """Accepts only printable strings, which can go into logs unchanged."""
  is_string = _is_string(longest)
  return lambda value: is_string(value) and value.isprintable()


def _is_identity(identity: Any) -> bool:
  """Accepts strings, lists of strings, and mappings of strings, by name."""

  def words(value):
    if type(value) is dict:
      value = [*value, *value.values()]
    return value if type(value) is list else [value]

  is_word = _is_string(SHORT)
  return (
    type(identity) is dict
    and all(map(_is_text(100), identity))
    and all(is_word(word) for fact in identity.values() for word in words(fact))
  )


_ERROR = {'code': _is_int(1, 255), 'text': _is_text(_TEXT)}

FROM_PROCESS: Table = {
  'hello': {
    'protocol': _is_int(1, 1000),
    'token': _is_text(64),  # Identifies the launch, see `session._token`.
    'nonce': _is_text(64),  # Identifies a process that connects again.
    # Process 0 itself does not come over the network.
    'process_id': _is_int(1, _MOST - 1),
    'num_processes': _is_int(2, _MOST),
    'host': _is_text(255),
    'pid': _is_int(1, 1 << 31),
    'identity': _is_identity,
  },
  'beat': {},  # A sign of life.
  'any_true': {'value': _is_bool},
  'broadcast': {'value': _is_string(LONG)},  # JSON; '' except in process 0.
  'done': {},  # The process has finished its work.
  # `grace`: seconds in which the others may still end with their own errors.
  'failed': {**_ERROR, 'grace': _is_int(0, 1 << 31)},
}

FROM_ARBITER: Table = {
  'beat': {},
  'busy': {'text': _is_text(_TEXT)},  # A run has started here already.
  'refused': {'text': _is_text(_TEXT)},  # The processes do not fit together.
  'welcome': {'text': _is_text(_TEXT)},  # All are there; names process 0.
  'any_true': {'value': _is_bool},
  'broadcast': {'value': _is_string(LONG)},
  'different': {'text': _is_text(_TEXT)},  # They wait in different calls.
  # Verdicts.
  'lost': {'text': _is_text(_TEXT)},
  'ended': _ERROR,  # Another process ended, with this exit code.
  'own': {},  # The process ends with its own error.
  'end': {'orderly': _is_bool},
}


# ---- Lines -------------------------------------------------------------------


def clean(text: str) -> str:
  """Makes a text valid for a message: printable, and not too long."""
  return ''.join(c if c.isprintable() else ' ' for c in text[:_TEXT])


def encode(kind: str, **fields: Any) -> bytes:
  if 'text' in fields:
    fields['text'] = clean(fields['text'])
  return json.dumps({kind: fields}).encode() + b'\n'


def decode(line: bytes, table: Table) -> tuple[str, dict[str, Any]]:
  """Returns a message's kind and its fields, without unknown fields.

  Raises:
    InvalidError: the table does not allow this message.
  """
  try:
    message = json.loads(
      line.decode(), parse_constant=_refuse, parse_float=_refuse
    )
  except (ValueError, RecursionError) as error:
    raise InvalidError(type(error).__name__) from error
  if type(message) is not dict or len(message) != 1:
    raise InvalidError('not an object with one entry')
  [(kind, fields)] = message.items()
  if kind not in table or type(fields) is not dict:
    raise InvalidError('of an unknown kind')
  if kind == 'hello':  # Older versions of this program send neither.
    fields = {'token': '', 'nonce': '', **fields}
  for name, is_right in table[kind].items():
    if name not in fields or not is_right(fields[name]):
      raise InvalidError(f'the {name} of {kind}')
  return kind, {name: fields[name] for name in table[kind]}


def _refuse(text: str) -> None:
  raise ValueError(f'No field may be {text[:20]}.')


async def read(
  reader: asyncio.StreamReader, table: Table
) -> tuple[str, dict[str, Any]]:
  """Waits for the next message, see `decode`.

  Raises:
    EndError: no further message can come.
  """
  try:
    line = await reader.readuntil()
  except asyncio.IncompleteReadError as error:
    raise EndError('connection closed') from error
  except asyncio.LimitOverrunError as error:
    raise InvalidError('too long') from error
  except OSError as error:
    raise EndError(f'connection closed ({error.strerror or error})') from error
  return decode(line, table)


def write(writer: asyncio.StreamWriter, line: bytes) -> None:
  """Queues a line for sending; does not wait until the other side reads it."""
  if not writer.is_closing():
    writer.write(line)


# ---- Forked children ---------------------------------------------------------

_open: 'weakref.WeakSet[socket.socket | asyncio.StreamWriter]' = (
  weakref.WeakSet()
)


def track(connection: socket.socket | asyncio.StreamWriter) -> None:
  """Registers a connection that forked children must not keep open."""
  _open.add(connection)


def _close_in_child() -> None:
  """Closes the connections in a forked child, such as a data worker.

  With an open copy, the other side would not notice that the parent was killed,
  and a new run could not take the port. The file descriptors then point to the
  null device instead of being free, because copies of the parent's objects may
  still close them.
  """
  nothing = os.open(os.devnull, os.O_RDWR)
  for each in list(_open):
    if isinstance(each, asyncio.StreamWriter):
      each = each.get_extra_info('socket')
    if each.fileno() >= 0:
      os.dup2(nothing, each.fileno(), inheritable=False)
  os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
