"""The thread of process 0 that brings the processes together and judges.

One thread judges, so that all processes get the same verdict. Every process,
number 0 included, has one connection to it:

  process to arbiter                arbiter to process
  hello: who I am                   beat: still here
  beat: still here                  busy: another run goes on here
  failed: the text of my error      welcome: all are there
  left: that of a RestartableError  refused: the process does not fit, or others
  done: my work                     left: another process left on purpose
  value: to be agreed on            values: of all processes
                                    lost, own, end: the verdict
"""

import contextlib
import selectors
import socket
import threading
import time
from typing import Any

from absl import logging

from vit_jax.distributed import connection, roster

# Seconds.
LINGER = 3.0  # For the others to read the verdict.
_HELLO = 10.0  # From a connection to its hello.
_TICK = 0.2
_SENDING = 0.01  # The tick while a long message is on its way.
_REMIND = 20.0  # Between log lines that say for whom it waits.
_DEAF = 1.0  # After a connection that could not be accepted.


def beat_interval(lost_timeout: float) -> float:
  """Seconds between two signs of life."""
  return min(lost_timeout / 10, 5.0)


class Arbiter(threading.Thread):
  """Serves until the run ends; `drained` is set when all have been told."""

  def __init__(
    self,
    listener: socket.socket,
    own: socket.socket,
    members: roster.Roster,
    lost_timeout: float,
  ):
    """`own` leads to process 0's member; `lost_timeout` in seconds."""
    super().__init__(name='arbiter', daemon=True)
    self.drained = threading.Event()
    self._roster = members
    self._interval = beat_interval(lost_timeout)
    self._connections: dict[int, connection.Connection] = {}
    self._strangers: dict[connection.Connection, float] = {}
    self._values: dict[int, Any] = {}
    self._listener = connection.track(listener)
    self._listener.setblocking(False)
    self._selector = selectors.DefaultSelector()
    self._listens = False
    self._now = self._beaten = self._reminded = time.monotonic()
    self._deaf_until = self._now
    self._listen(True)
    self._adopt(own)

  def run(self) -> None:
    try:
      while not self._step():
        pass
      self._linger()
    finally:
      for each in [*self._connections.values(), *self._strangers]:
        each.close()
      self._listener.close()
      self._selector.close()
      self.drained.set()

  def _step(self) -> bool:
    """Hears what comes within a tick; returns whether the run has ended."""
    waits = any(each.waits for each in self._connections.values())
    ready = self._selector.select(_SENDING if waits else _TICK)
    last, self._now = self._now, time.monotonic()
    if self._now - last > 10 * _TICK:
      self._roster.pause(self._now - last)
    if not self._listens and self._now > self._deaf_until:
      self._listen(True)
    for key, _ in ready:
      if key.fileobj is self._listener:
        self._accept()
      elif isinstance(key.data, roster.Peer):
        self._hear(key.data)
      else:
        self._hear_stranger(key.data)
    for stranger, deadline in list(self._strangers.items()):
      if self._now > deadline:
        self._drop(stranger)
    if self._now - self._beaten > self._interval:
      self._beaten = self._now
      self._tell_all(beat=True)
    for each in self._connections.values():
      each.flush()
    return self._judge() if self._roster.started else self._gather()

  def _listen(self, listens: bool) -> None:
    if listens and not self._listens:
      self._selector.register(self._listener, selectors.EVENT_READ)
    elif self._listens and not listens:
      self._selector.unregister(self._listener)
    self._listens = listens

  def _accept(self) -> None:
    try:
      self._adopt(self._listener.accept()[0])
    except OSError as error:
      # It has gone again; or the open files are too many, for now. Then the
      # listener stays readable: to select it would be a busy loop.
      self._listen(False)
      self._deaf_until = self._now + _DEAF
      logging.log_every_n_seconds(
        logging.WARNING,
        'Process 0 could not accept a connection: %s.',
        _REMIND,
        error.strerror,
      )

  def _adopt(self, sock: socket.socket) -> None:
    stranger = connection.Connection(sock, connection.HELLO_BYTES)
    self._strangers[stranger] = self._now + _HELLO
    self._selector.register(sock, selectors.EVENT_READ, stranger)

  def _drop(self, stranger: connection.Connection) -> None:
    self._strangers.pop(stranger)
    self._selector.unregister(stranger.socket)
    stranger.close()

  def _hear_stranger(self, stranger: connection.Connection) -> None:
    """Lets a process in; whatever else comes to the port is sent away."""
    try:
      messages = stranger.receive()
      if messages:
        self._enter(stranger, messages[0]['hello'])
      elif stranger.closed:
        self._drop(stranger)
    except (ValueError, TypeError, KeyError):
      self._drop(stranger)

  def _enter(self, stranger, hello) -> None:
    if self._roster.started:
      old = self._roster.peers.get(hello['process_id'], 'no such process')
      stranger.send(busy=f'a run with {old} goes on there')
      self._drop(stranger)
      return
    try:
      peer = self._roster.enter(self._now, **hello)
    except roster.MisfitError as error:
      logging.warning('Sent away: %s', error)
      stranger.send(refused=str(error))
      self._drop(stranger)
      return
    # From now on process 0 decides how long it waits.
    stranger.send(beat=True)
    if peer is None:
      # Stays among the strangers, to hear of the conflict.
      self._strangers[stranger] = float('inf')
      return
    if peer.process_id in self._connections:
      self._forget(peer.process_id)
    stranger.trust()
    self._strangers.pop(stranger)
    self._connections[peer.process_id] = stranger
    self._selector.modify(stranger.socket, selectors.EVENT_READ, peer)

  def _forget(self, process_id: int) -> None:
    old = self._connections.pop(process_id)
    with contextlib.suppress(KeyError):
      self._selector.unregister(old.socket)
    old.close()

  def _tell_all(self, **message: Any) -> None:
    for each in self._connections.values():
      each.send(**message)

  def _hear(self, peer: roster.Peer) -> None:
    link = self._connections[peer.process_id]
    try:
      messages = link.receive()
      peer.gone = link.closed
    except ValueError as error:
      messages, peer.gone = [], f'sent what is no message ({error})'
    peer.seen = self._now
    for message in messages:
      self._note(peer, message)
    if peer.gone:
      self._selector.unregister(link.socket)

  def _note(self, peer: roster.Peer, message: dict[str, Any]) -> None:
    for state in ('done', 'left', 'failed'):
      if state in message:
        peer.state, peer.since, peer.text = state, self._now, message[state]
    if 'left' in message:
      self._tell_all(left=[peer.process_id, f'{peer} ended: {peer.text}'])
    if 'value' in message:
      self._values[peer.process_id] = message['value']
      if len(self._values) == len(self._connections):
        self._tell_all(values=[v for _, v in sorted(self._values.items())])
        self._values = {}

  def _gather(self) -> bool:
    """Before the start: returns whether it has come to nothing."""
    for peer in list(self._roster.peers.values()):
      if peer.gone:
        logging.warning('%s left again before the start.', peer)
        self._forget(peer.process_id)
        del self._roster.peers[peer.process_id]
        if peer.process_id == 0:
          return True
    if text := self._roster.conflict(self._now):
      self._tell_all(refused=text)
      for stranger in self._strangers:
        stranger.send(refused=text)
      return True
    if self._roster.complete():
      self._roster.start(self._now)
      self._tell_all(welcome=str(self._roster.peers[0]))
      return False
    if self._now - self._reminded > _REMIND:
      self._reminded = self._now
      logging.info('%s did not join yet.', self._roster.absent())
    return self._judge()

  def _judge(self) -> bool:
    verdict = self._roster.verdict(self._now)
    for process_id, message in (verdict or {}).items():
      self._connections[process_id].send(**message)
    return verdict is not None

  def _linger(self) -> None:
    """Waits until the others have read the verdict and closed.

    If this process ended first, they could not tell it from an accident.
    """
    # A process that starts anew must not be taken into this run.
    self._listen(False)
    self._listener.close()
    others = {c for i, c in self._connections.items() if i != 0}
    others = {c for c in others | set(self._strangers) if not c.closed}
    deadline = time.monotonic() + LINGER
    while others and time.monotonic() < deadline:
      others = {each for each in others if not each.finish()}
      time.sleep(0.02)
