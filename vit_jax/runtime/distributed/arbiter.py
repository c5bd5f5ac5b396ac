"""The part of process 0 that brings the processes together and ends the run.

Only the arbiter decides how a run ends, so all processes get the same verdict.
Every process, process 0 included, has one connection to the arbiter. It runs in
the thread of `session`.
"""

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import os
import socket
import time
from typing import Any

from absl import logging

from vit_jax.runtime import errors
from vit_jax.runtime.distributed import cluster, messages, roster

# Seconds.
_BIND = 20.0  # For a run that has just ended to free the port.
LINGER = 3.0  # For the others to read the verdict.
_HELLO = 10.0  # Between a connection and its hello.
_REMIND = 20.0  # Between log lines of one kind.
# The most connections without a hello, in addition to one for each process.
# More could use up the file descriptors of process 0.
_STRANGERS = 256


def listen(place: cluster.Place, timeout: float) -> socket.socket:
  """Opens the port; waits if the last run has not freed it yet.

  Raises:
    HostLostError: the port stays in use.
    OSError: the port cannot be opened for another reason.
  """
  coordinator = int(place.coordinator_address.rpartition(':')[2])
  deadline = time.monotonic() + min(_BIND, timeout)
  while True:
    port = coordinator
    try:
      # Tries JAX's port too, because JAX would not name a port that it can't
      # open.
      _bind(place.host, coordinator).close()
      port = place.port
      return _bind(place.host, port)
    except OSError as error:
      in_use = error.errno == errno.EADDRINUSE
      if not in_use or time.monotonic() > deadline:
        # The last run's process 0 may take some minutes to end.
        kind = errors.HostLostError if in_use else OSError
        raise kind(
          f'Process 0 cannot use port {port}: {os.strerror(error.errno)}. It'
          f' needs {coordinator}, that of coordinator_address, and'
          f' {place.port}, where the processes meet. If another run or program'
          ' uses them, choose another port in coordinator_address, or in the'
          ' environment variable JAX_COORDINATOR_PORT if the cluster gives the'
          ' address.'
        ) from error
    time.sleep(0.3)


def _bind(host: str, port: int) -> socket.socket:
  try:
    local = ipaddress.ip_address(host).is_loopback
  except ValueError:
    local = host == 'localhost'
  if local:
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
  if socket.has_dualstack_ipv6():
    try:
      return socket.create_server(
        ('', port), family=socket.AF_INET6, dualstack_ipv6=True
      )
    except OSError as error:
      if error.errno == errno.EADDRINUSE:
        raise
  # The kernel supports IPv6, but the host has no IPv6 address.
  return socket.create_server(('', port))


class Arbiter:
  """Serves until the run has ended and all processes know the verdict."""

  def __init__(
    self,
    listener: socket.socket,
    own: socket.socket,
    members: roster.Roster,
    token: str,
  ):
    """Prepares to serve; `own` is a socket to process 0's member."""
    self._listener = listener
    self._own = own
    self._roster = members
    self._token = token
    self._writers: dict[int, asyncio.StreamWriter] = {}
    self._strangers: dict[asyncio.StreamWriter, None] = {}  # The oldest first.
    self._asked: dict[int, tuple[str, Any]] = {}  # In `any_true`, `broadcast`.
    for each in (listener, own):
      messages.track(each)

  async def serve(self) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report)
    server = await asyncio.start_server(
      self._receive,
      sock=self._listener,
      limit=messages.SHORT,
      backlog=max(self._roster.num_processes, 128),
    )
    reader, self._writers[0] = await asyncio.open_connection(
      sock=self._own, limit=messages.LONG
    )
    own = loop.create_task(self._hear(self._roster.peers[0], reader))
    self._tell(0, 'beat')
    try:
      verdict = await self._watch()
    except Exception as error:
      logging.exception('The supervision of the processes ended.')
      text = f'Process 0 cannot watch the others anymore: {error!r}.'
      verdict = dict.fromkeys(self._writers, ('lost', {'text': text}))
    finally:
      # A process that starts again must not join this run.
      server.close()
    for process_id, (kind, fields) in verdict.items():
      self._tell(process_id, kind, **fields)
    await self._linger()
    own.cancel()

  # ---- Connections -----------------------------------------------------------

  async def _receive(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """Accepts a process and listens to it; sends everything else away."""
    messages.track(writer)
    self._strangers[writer] = None
    if len(self._strangers) > _STRANGERS + self._roster.num_processes:
      oldest = next(iter(self._strangers))
      del self._strangers[oldest]
      oldest.transport.abort()
    try:
      async with asyncio.timeout(_HELLO):
        kind, hello = await messages.read(reader, messages.FROM_PROCESS)
      peer = self._enter(writer, hello) if kind == 'hello' else None
      if peer:
        self._strangers.pop(writer, None)
        await self._hear(peer, reader)
    except OSError:
      pass  # The connection ended in some way.
    finally:  # Unexpected errors go to `_report`.
      self._strangers.pop(writer, None)
      writer.close()

  def _enter(
    self, writer: asyncio.StreamWriter, hello: dict[str, Any]
  ) -> roster.Peer | None:
    if not hmac.compare_digest(hello['token'].encode(), self._token.encode()):
      logging.log_every_n_seconds(
        logging.WARNING,
        'Sent away a process of another launch: process %d on %s (pid %d).',
        _REMIND,
        *(hello[name] for name in ('process_id', 'host', 'pid')),
      )
      return None
    if self._roster.started:
      old = self._roster.peers.get(hello['process_id'], 'no such process')
      text = f'a run with {old} is going on there'
      messages.write(writer, messages.encode('busy', text=text))
      return None
    try:
      peer = self._roster.enter(time.monotonic(), hello)
    except roster.MismatchError as error:
      logging.log_every_n_seconds(
        logging.WARNING, 'Sent away: %s', 1.0, str(error)
      )
      messages.write(writer, messages.encode('refused', text=str(error)))
      return None
    if peer.process_id in self._writers:  # The process connects again.
      self._writers[peer.process_id].close()
    self._writers[peer.process_id] = writer
    # From now on process 0 decides how long it waits.
    self._tell(peer.process_id, 'beat')
    return peer

  async def _hear(
    self, peer: roster.Peer, reader: asyncio.StreamReader
  ) -> None:
    try:
      while True:
        message = await messages.read(reader, messages.FROM_PROCESS)
        peer.seen = time.monotonic()
        self._note(peer, *message)
    except messages.EndError as error:
      peer.gone = str(error)
    except Exception as error:
      logging.exception('A message of %s could not be handled.', peer)
      peer.gone = f'its message could not be handled ({error!r})'

  def _note(self, peer: roster.Peer, kind: str, fields: dict[str, Any]) -> None:
    if kind in ('done', 'failed'):
      peer.state, peer.error, peer.since = kind, fields, peer.seen
    if kind in ('any_true', 'broadcast'):
      self._ask(peer.process_id, kind, fields['value'])

  def _ask(self, process_id: int, kind: str, value: Any) -> None:
    """Sends all processes the answer once all have asked."""
    if process_id in self._asked or not self._roster.started:
      raise messages.InvalidError(f'{kind} out of turn')
    self._asked[process_id] = kind, value
    if len(self._asked) < len(self._writers):
      return
    asked, self._asked = [self._asked[i] for i in sorted(self._asked)], {}
    kinds = list(dict.fromkeys(kind for kind, _ in asked))
    if len(kinds) > 1:
      self._tell_all(
        'different',
        text=f'The processes wait for each other in different calls: {kinds}.',
      )
    elif kind == 'any_true':
      self._tell_all(kind, value=any(value for _, value in asked))
    else:
      self._tell(0, kind, value='')  # Process 0 has the value already.
      self._tell_all(kind, skip=0, value=asked[0][1])

  def _tell(self, process_id: int, kind: str, **fields: Any) -> None:
    messages.write(self._writers[process_id], messages.encode(kind, **fields))

  def _tell_all(self, kind: str, skip: int = -1, **fields: Any) -> None:
    line = messages.encode(kind, **fields)
    for process_id, writer in self._writers.items():
      if process_id != skip:
        messages.write(writer, line)

  # ---- Time ------------------------------------------------------------------

  async def _watch(self) -> roster.Verdict:
    """Waits for the verdict and returns it."""
    clock = roster.Clock(self._roster.limits)
    reminded = clock.now
    while True:
      self._roster.pause(clock.tick())
      if clock.beat():
        self._tell_all('beat')
      if not self._roster.started:
        if self._roster.peers[0].gone:
          return {}  # No verdict: a new process 0 may come.
        self._gather(clock.now)
        if clock.now - reminded > _REMIND and not self._roster.started:
          reminded = clock.now
          logging.info('%s did not join yet.', self._roster.absent())
      verdict = self._roster.verdict(clock.now)
      if verdict is not None:
        return verdict
      await asyncio.sleep(roster.TICK)

  def _gather(self, now: float) -> None:
    for peer in self._roster.leave():
      logging.warning('%s left again before the start.', peer)
      self._writers.pop(peer.process_id).close()
    if self._roster.complete():
      self._roster.start(now)
      self._tell_all('welcome', text=str(self._roster.peers[0]))

  async def _linger(self) -> None:
    """Waits until the others have read the verdict and closed.

    If process 0 ended first, the others would report it as lost.
    """
    for writer in self._writers.values():
      with contextlib.suppress(OSError):
        if not writer.is_closing():
          writer.write_eof()
    others = [p for i, p in self._roster.peers.items() if i != 0]
    deadline = time.monotonic() + LINGER
    while not all(p.gone for p in others) and time.monotonic() < deadline:
      await asyncio.sleep(0.02)
    for writer in [*self._writers.values(), *self._strangers]:
      writer.transport.abort()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
  """Logs an error of asyncio, which goes on."""
  del loop
  error = context.get('exception')
  if not isinstance(error, OSError):
    logging.error('Process 0: %s', context['message'], exc_info=error)
    return
  # Too many files are open for now. asyncio tries again after a second.
  logging.log_every_n_seconds(
    logging.WARNING,
    'Process 0 could not accept a connection: %s.',
    _REMIND,
    error.strerror,
  )
