"""A process's side of the connection to the arbiter in process 0.

All code here runs in the thread of `session`, so no locks are needed.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from absl import logging

from vit_jax.runtime import errors
from vit_jax.runtime.distributed import arbiter, cluster, messages, roster

# Seconds.
_ATTEMPT = 5.0  # For one attempt to connect.
_PAUSE = 0.3  # Between two attempts.
_ANSWER = 1.0  # For an answer, even when the time to start is over.

_VERDICTS = ('lost', 'ended', 'own', 'end')


class Member:
  """Joins, sends signs of life, and ends this process if another is lost."""

  def __init__(
    self,
    place: cluster.Place,
    identity: Mapping[str, Any],
    token: str,
    limits: roster.Limits,
    end: Callable[[errors.RestartableError], Awaitable[None]] | None = None,
  ):
    """`identity` must be the same in all processes; `end` ends this one."""
    self.process_id = place.process_id
    self._place = place
    self._limits = limits
    self._end = end
    self._first = f'process 0 at {place.host}:{place.port}'
    self._hello = messages.encode(
      'hello',
      protocol=messages.PROTOCOL,
      token=token,
      nonce=secrets.token_hex(8),
      process_id=place.process_id,
      num_processes=place.num_processes,
      host=socket.gethostname(),
      pid=os.getpid(),
      identity=identity,
    )
    self._writer: asyncio.StreamWriter | None = None
    self._exchanging = asyncio.Lock()
    self._asked = ''
    self._answer: asyncio.Future[tuple[str, Any]] | None = None
    self._verdict: asyncio.Future[roster.Told] | None = None
    self._main_waits = False  # The main thread then raises the error itself.
    self._seen = 0.0

  # ---- Before the start ------------------------------------------------------

  async def join(self, own: socket.socket | None) -> None:
    """Waits until all processes have joined.

    Args:
      own: in process 0, a socket to its arbiter; None in other processes.

    Raises:
      HostLostError: some processes did not join; the message names them.
      ValueError: the processes do not fit together; the message says why.
    """
    if len(self._hello) > messages.SHORT:
      raise ValueError(
        'The command line is too long to be compared: the message has'
        f' {len(self._hello)} bytes, and {messages.SHORT} are allowed. Move'
        ' some of it into the config.'
      )
    deadline = time.monotonic() + self._limits.start
    problem = ''
    while True:
      try:
        reader = await self._greet(own, deadline)
        break
      except messages.InvalidError:
        new_problem = 'another program answers at this port'
      except OSError as error:
        new_problem = error.strerror or str(error)
      if new_problem != problem:
        logging.info('Waiting for %s: %s.', self._first, new_problem)
      problem = new_problem
      if time.monotonic() > deadline:
        raise errors.HostLostError(
          f'{self._first.capitalize()} did not answer within'
          f' {self._limits.start:.0f} s ({problem}); this is process'
          f' {self.process_id} of {self._place.num_processes} on'
          f' {socket.gethostname()}. See the log of process 0: it ended, was'
          ' never started, or cannot be reached from this host.'
        )
      await asyncio.sleep(_PAUSE)
    self._verdict = asyncio.get_running_loop().create_future()
    self._watching = asyncio.create_task(self._watch(reader))

  async def _greet(
    self, own: socket.socket | None, deadline: float
  ) -> asyncio.StreamReader:
    """Says hello and waits for the welcome; OSError if worth another try."""
    if own is None:
      timeout = min(_ATTEMPT, max(deadline - time.monotonic(), 0.1))
      # This blocks the thread, which has nothing else to do yet.
      sock = socket.create_connection(
        (self._place.host, self._place.port), timeout
      )
    messages.track(own or sock)
    reader, self._writer = await asyncio.open_connection(
      sock=own or sock, limit=messages.LONG
    )
    try:
      if own is None:
        messages.write(self._writer, self._hello)
      # After its first sign of life, process 0 decides when the time is over.
      limit = min(deadline - time.monotonic(), self._limits.lost)
      while True:
        try:
          async with asyncio.timeout(max(limit, _ANSWER)):
            kind, fields = await messages.read(reader, messages.FROM_ARBITER)
        except TimeoutError:
          raise OSError('connected, but no sign of life') from None
        limit = self._limits.lost
        if kind == 'welcome':
          self._first = fields['text']
          return reader
        if kind == 'refused':
          raise ValueError(fields['text'])
        if kind == 'lost':
          raise errors.HostLostError(fields['text'])
        if kind == 'busy':
          raise OSError(fields['text'])
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    if self._writer:
      self._writer.close()

  # ---- During the run --------------------------------------------------------

  async def exchange(self, kind: str, value: bool | str) -> Any:
    """Sends a flag to `any_true` or a text to `broadcast`, in one round trip.

    Calls from several threads run one after another. Returns whether any flag
    is True, or process 0's text ('' in process 0). For errors see `session`.
    """
    line = messages.encode(kind, value=value)
    if len(line) > messages.LONG:
      raise ValueError(
        f'The value is too long for {kind}: {len(line)} bytes, and'
        f' {messages.LONG} are allowed.'
      )
    async with self._exchanging:
      self._answer = asyncio.get_running_loop().create_future()
      self._asked = kind
      messages.write(self._writer, line)
      await asyncio.wait(
        [self._answer, self._verdict], return_when=asyncio.FIRST_COMPLETED
      )
      if not self._answer.done():
        text = 'The run has ended in all processes.'
        raise await self._cause() or errors.HostLostError(text)
      answer_to, answer = self._answer.result()
    if answer_to == 'different':
      raise RuntimeError(answer)
    return answer

  async def fail(
    self, code: int, text: str, grace: int
  ) -> errors.RestartableError | None:
    """Reports an error; returns another process's error if that caused it.

    The others have `grace` seconds to end with errors of their own.
    """
    timeout = grace + arbiter.LINGER
    return await self._leave(
      timeout, 'failed', code=code, text=text, grace=grace
    )

  async def finish(self, timeout: float) -> bool:
    """Waits until all are done; returns whether all are still connected.

    Raises:
      HostLostError, OtherProcessError: a process was lost or failed, or is not
        done within `timeout` seconds.
    """
    if error := await self._leave(timeout, 'done'):
      raise error
    if not self._verdict.done():
      raise errors.HostLostError(
        f'Other processes are still working {timeout:g} s after this process'
        ' was done.'
      )
    return self._verdict.result() == ('end', {'orderly': True})

  async def _leave(
    self, timeout: float, kind: str, **fields: Any
  ) -> errors.RestartableError | None:
    await self._cause()
    self._main_waits = True
    messages.write(self._writer, messages.encode(kind, **fields))
    await asyncio.wait([self._verdict], timeout=timeout)
    return await self._cause()

  def _error(self) -> errors.RestartableError | None:
    """Returns the error that the verdict means for this process, if any."""
    if not self._verdict.done():
      return None
    kind, fields = self._verdict.result()
    if kind == 'ended':
      return errors.OtherProcessError(fields['text'], fields['code'])
    return errors.HostLostError(fields['text']) if kind == 'lost' else None

  async def _cause(self) -> errors.RestartableError | None:
    """Like `_error`, but never returns if `_watch` ends the process.

    So only one thread reports the error.
    """
    error = self._error()
    if error and not self._main_waits:
      await asyncio.Event().wait()
    return error

  async def _watch(self, reader: asyncio.StreamReader) -> None:
    """Listens and sends signs of life until there is a verdict."""
    listening = asyncio.create_task(self._listen(reader))
    clock = roster.Clock(self._limits)
    self._seen, silent = clock.now, False
    try:
      while not listening.done() and not silent:
        await asyncio.wait([listening], timeout=roster.TICK)
        self._seen += clock.tick()
        if clock.beat():
          messages.write(self._writer, messages.encode('beat'))
        silent = clock.now - self._seen > self._limits.lost
      if listening.done():
        verdict = listening.result()
      else:
        verdict = self._lost(f'no sign of life for {self._limits.lost:g} s')
    except Exception as error:
      logging.exception('The supervision of this process ended.')
      verdict = self._lost(f'this process cannot hear it anymore ({error!r})')
    listening.cancel()
    self._verdict.set_result(verdict)
    self.close()
    if (error := self._error()) and not self._main_waits:
      await self._end(error)

  async def _listen(self, reader: asyncio.StreamReader) -> roster.Told:
    """Receives messages, and returns the verdict when it comes."""
    try:
      while True:
        kind, fields = await messages.read(reader, messages.FROM_ARBITER)
        self._seen = time.monotonic()
        if kind in _VERDICTS:
          return kind, fields
        if kind in ('any_true', 'broadcast', 'different'):
          if kind not in (self._asked, 'different') or self._answer.done():
            raise messages.InvalidError(f'{kind} out of turn')
          self._answer.set_result((kind, *fields.values()))
    except messages.EndError as error:
      return self._lost(str(error))

  def _lost(self, why: str) -> roster.Told:
    return 'lost', {'text': f'Lost {self._first}: {why}.'}
