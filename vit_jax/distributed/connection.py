"""A TCP connection that carries JSON objects, one a line, and never blocks."""

import contextlib
import json
import os
import socket
import weakref
from typing import Any

# Whoever has not said hello yet may not fill the memory.
HELLO_BYTES = 1 << 18
_VALUE_BYTES = 1 << 24

_open: 'weakref.WeakSet[socket.socket]' = weakref.WeakSet()


def _close_in_child() -> None:
  """A forked child, such as a data worker, must not keep them open.

  The other side would not notice that the parent was killed, and a new run
  could not take the port.
  """
  for sock in list(_open):
    sock.close()


os.register_at_fork(after_in_child=_close_in_child)


def track(sock: socket.socket) -> socket.socket:
  """Sees to it that forked children do not keep the socket open."""
  _open.add(sock)
  return sock


class Connection:
  """Both directions of one socket; `closed` says why nothing more comes."""

  def __init__(self, sock: socket.socket, limit: int = _VALUE_BYTES):
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # Not of TCP, in process 0 itself.
      sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.socket = track(sock)
    self.closed = ''
    self._limit = limit
    self._received = b''
    self._unsent = b''
    self._finished = False

  def trust(self) -> None:
    """Allows long messages."""
    self._limit = _VALUE_BYTES

  def send(self, **message: Any) -> None:
    self._unsent += json.dumps(message).encode() + b'\n'
    self.flush()

  @property
  def waits(self) -> bool:
    """Whether something is left to send."""
    return bool(self._unsent)

  def flush(self) -> None:
    """Sends what the network takes now."""
    try:
      while self._unsent:
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
    except BlockingIOError:
      pass
    except OSError:
      # What the other side sent before may still be there to read: `receive`
      # finds out that it is gone.
      self._unsent = b''

  def receive(self) -> list[dict[str, Any]]:
    """Returns the messages that have arrived.

    Raises:
      ValueError: the other side sends something else.
    """
    try:
      while data := self.socket.recv(1 << 16):
        self._received += data
        if len(self._received) > self._limit:
          raise ValueError('The message is too long.')
      self.closed = self.closed or 'connection closed'
    except BlockingIOError:
      pass
    except OSError as error:
      self.closed = f'connection closed ({error.strerror})'
    *lines, self._received = self._received.split(b'\n')
    try:
      messages = [json.loads(line) for line in lines]
    except RecursionError as error:
      raise ValueError('A message is nested too deep.') from error
    if not all(isinstance(message, dict) for message in messages):
      raise ValueError('A message is not an object.')
    return messages

  def finish(self) -> bool:
    """Sends the rest and says so; returns whether the other side has closed."""
    self.flush()
    if not self._unsent and not self._finished:
      self._finished = True
      with contextlib.suppress(OSError):
        self.socket.shutdown(socket.SHUT_WR)
    try:
      self.receive()
    except ValueError:
      return True
    return bool(self.closed)

  def close(self) -> None:
    self.socket.close()
