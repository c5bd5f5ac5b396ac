"""What the processes tell each other: one JSON object a line, all checked.

A line is `{KIND: {FIELD: VALUE, ...}}`. The two tables say which kinds each
side may send, and what their fields may be. Nothing else is let in: anybody can
connect to the port, and a value of another type or size would otherwise do its
harm far from here.
"""

import asyncio
import json
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any

PROTOCOL = 2
# Bytes of a line. Whoever has not said hello yet may not fill the memory.
SHORT, LONG = 1 << 18, 1 << 24
_MOST = 1_000_000  # Processes.
_TEXT = 1 << 15  # Characters; the errors of 16 processes fit.

Table = Mapping[str, Mapping[str, Callable[[Any], bool]]]


class EndError(ConnectionError):
  """Nothing more comes from the other side; the text says why."""


class InvalidError(EndError):
  """The other side sent what is no message."""

  def __init__(self, what: str):
    super().__init__(f'sent what is no message ({what})')


# ---- Checks ------------------------------------------------------------------


def _is_bool(value: Any) -> bool:
  return type(value) is bool


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
  # A bool is an int to isinstance.
  return lambda value: type(value) is int and low <= value <= high


def _is_string(longest: int) -> Callable[[Any], bool]:
  return lambda value: type(value) is str and len(value) <= longest


def _is_text(longest: int) -> Callable[[Any], bool]:
  """It goes into logs as it is."""
  is_string = _is_string(longest)
  return lambda value: is_string(value) and value.isprintable()


def _is_identity(identity: Any) -> bool:
  """Strings, lists of strings, or mappings of strings, by name."""

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
    'token': _is_text(64),  # Which launch it is of, see `session.token`.
    'nonce': _is_text(64),  # The same when the same process comes again.
    # Process 0 does not come over the network.
    'process_id': _is_int(1, _MOST - 1),
    'num_processes': _is_int(2, _MOST),
    'host': _is_text(255),
    'pid': _is_int(1, 1 << 31),
    'identity': _is_identity,
  },
  'beat': {},  # Still here.
  'any_true': {'value': _is_bool},
  'broadcast': {'value': _is_string(LONG)},  # JSON; '' if not of process 0.
  'done': {},  # With its work.
  # For how many seconds the others may still end with an error of their own.
  'failed': {**_ERROR, 'grace': _is_int(0, 1 << 31)},
}

FROM_ARBITER: Table = {
  'beat': {},
  'busy': {'text': _is_text(_TEXT)},  # Another run goes on here.
  'refused': {'text': _is_text(_TEXT)},  # The processes do not fit together.
  'welcome': {'text': _is_text(_TEXT)},  # All are there; what process 0 is.
  'any_true': {'value': _is_bool},
  'broadcast': {'value': _is_string(LONG)},
  'different': {'text': _is_text(_TEXT)},  # They wait in different calls.
  # Verdicts.
  'lost': {'text': _is_text(_TEXT)},
  'ended': _ERROR,  # Another process did, with this exit code.
  'own': {},  # The process's own error counts.
  'end': {'orderly': _is_bool},
}


# ---- Lines -------------------------------------------------------------------


def clean(text: str) -> str:
  """Makes a text one that may be sent."""
  return ''.join(c if c.isprintable() else ' ' for c in text[:_TEXT])


def encode(kind: str, **fields: Any) -> bytes:
  if 'text' in fields:
    fields['text'] = clean(fields['text'])
  return json.dumps({kind: fields}).encode() + b'\n'


def decode(line: bytes, table: Table) -> tuple[str, dict[str, Any]]:
  """Returns a message's kind and its fields; those unknown are left out.

  Raises:
    InvalidError: it is none of the table.
  """
  try:
    message = json.loads(
      line.decode(), parse_constant=_refuse, parse_float=_refuse
    )
  except (ValueError, RecursionError) as error:
    raise InvalidError(type(error).__name__) from error
  if type(message) is not dict or len(message) != 1:
    raise InvalidError('not an object of one entry')
  [(kind, fields)] = message.items()
  if kind not in table or type(fields) is not dict:
    raise InvalidError('of no known kind')
  if kind == 'hello':  # An older version of this program has neither.
    fields = {'token': '', 'nonce': '', **fields}
  for name, is_right in table[kind].items():
    if name not in fields or not is_right(fields[name]):
      raise InvalidError(f'the {name} of {kind}')
  return kind, {name: fields[name] for name in table[kind]}


def _refuse(text: str) -> None:
  raise ValueError(f'No field is {text[:20]}.')


async def read(
  reader: asyncio.StreamReader, table: Table
) -> tuple[str, dict[str, Any]]:
  """Waits for the next message, see `decode`.

  Raises:
    EndError: none comes any more.
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
  """Sends as fast as the other side reads, and waits for nothing."""
  if not writer.is_closing():
    writer.write(line)


# ---- Forked children ---------------------------------------------------------

_open: 'weakref.WeakSet[socket.socket | asyncio.StreamWriter]' = (
  weakref.WeakSet()
)


def track(connection: socket.socket | asyncio.StreamWriter) -> None:
  """Sees to it that forked children do not keep a connection open."""
  _open.add(connection)


def _close_in_child() -> None:
  """A forked child, such as a data worker, must not keep them open.

  The other side would not notice that the parent was killed, and a new run
  could not take the port. The numbers stay in use, by nothing: objects of the
  parent still have them, and may close them.
  """
  nothing = os.open(os.devnull, os.O_RDWR)
  for each in list(_open):
    if isinstance(each, asyncio.StreamWriter):
      each = each.get_extra_info('socket')
    if each.fileno() >= 0:
      os.dup2(nothing, each.fileno(), inheritable=False)
  os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
