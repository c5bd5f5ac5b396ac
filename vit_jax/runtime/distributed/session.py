"""`connected`: one process's part in a run of several, from start to end."""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import jax
from absl import logging

from vit_jax.runtime import errors, installed
from vit_jax.runtime.distributed import (
  arbiter,
  cluster,
  jax_service,
  member,
  roster,
)

# Seconds.
_FINISH = 900.0  # Between the end of one process's work and that of the others.
_CLOSE = 5.0  # For the thread to end.

_PLACE_FLAGS = ('coordinator_address', 'num_processes', 'process_id')
_run: '_Run | None' = None


@contextlib.contextmanager
def connected(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  start_timeout: float = 300.0,
  lost_timeout: float = 60.0,
) -> Iterator[None]:
  """Makes this process part of a run; does nothing if it is the only process.

  Enter this before JAX's devices are first used. docs/processes.md describes
  how the processes meet, and what ends them.

  Args:
    coordinator_address: HOST:PORT of JAX's coordination service, in process 0.
      None: the cluster tells it (Cloud TPU, also several slices, GKE, Slurm,
      Open MPI), as for `jax.distributed.initialize`. The same holds for the
      next two arguments; give all three or none.
    num_processes: the number of processes.
    process_id: the id of this process, from 0.
    start_timeout: seconds for all processes to join.
    lost_timeout: seconds without a sign of life after which a process is lost.

  Raises:
    ValueError: the arguments are wrong, or the processes do not fit together
      (their number, ids, command lines, code or versions).
    HostLostError: a process did not join, and the message names it; the loss of
      a process caused an error of the body; or a problem that may be over at
      the next start: the port is still in use, the cluster does not answer, or
      JAX's runtime does not start.
    OtherProcessError: another process ended with an error.
    OSError: the port cannot be used at all, or the cluster's answer cannot be
      read.
  """
  global _run
  began = time.monotonic()
  place = cluster.find(
    coordinator_address, num_processes, process_id, start_timeout
  )
  if place is None:
    yield
    return
  start_timeout = max(start_timeout - (time.monotonic() - began), 1.0)
  limits = roster.Limits(start_timeout, lost_timeout)
  with contextlib.closing(_Run(place, limits)) as this:
    this.meet()
    restore, exits = jax_service.delay_abort(), None
    try:
      jax_service.start(place, lost_timeout)
      logging.info('All %d processes are there.', place.num_processes)
      _run = this
      try:
        yield
      except SystemExit as error:
        if error.code not in (None, 0):
          raise
        exits = error
      orderly = this.call(this.member.finish(_FINISH))
    except BaseException as error:
      this.end_early(error)
      raise
    finally:
      _run = None
    if orderly:
      jax_service.stop()
      restore()
    else:
      jax_service.abandon(0)
    if exits:
      raise exits


def broadcast(value: Any) -> Any:
  """Returns process 0's value in all processes; all must call this.

  Costs no device time, but waits for the slowest process; works before the
  devices are first used. All processes must make their calls of `broadcast` and
  `any_true` in the same order. Several threads may call them if they keep that
  order.

  Args:
    value: a JSON value (tuples come back as lists). Only process 0's counts. It
      must be small: up to some megabytes.

  Raises:
    RuntimeError: JAX's runtime was started without `connected`, or other
      processes wait in `any_true`.
    ValueError: the value is too long.
    HostLostError, OtherProcessError: the run has ended in the meantime.
  """
  if _alone():
    return value
  text = json.dumps(value) if _run.member.process_id == 0 else ''
  return json.loads(_run.call(_run.member.exchange('broadcast', text)) or text)


def any_true(flag: bool) -> bool:
  """Returns whether any process gives True; all must call this.

  For the cost, the order of calls and the errors see `broadcast`.
  """
  if _alone():
    return flag
  return _run.call(_run.member.exchange('any_true', bool(flag)))


def barrier() -> None:
  """Waits until all processes have called this; for errors see `broadcast`."""
  any_true(False)


def stop_all(code: int, text: str) -> bool:
  """Ends all other processes at once, with an exit code and the reason.

  Call this only if this process ends, too. Returns whether `connected` is open.
  """
  if _run:
    _run.call(_run.member.fail(code, text, 0))
    _run.call(_run.drain())
  return _run is not None


def _alone() -> bool:
  if _run is None and jax.distributed.is_initialized():
    raise RuntimeError(
      'Other code initialized jax.distributed, so the processes have no'
      ' connection. Use vit_jax.runtime.distributed.connected instead.'
    )
  return _run is None


class _Run:
  """This process's part in a run, and the thread that talks to the others."""

  def __init__(self, place: cluster.Place, limits: roster.Limits):
    self._place, self._limits = place, limits
    self._facts, self._token = _facts(), _token(place)
    self.member = member.Member(
      place, self._facts, self._token, limits, self._end
    )
    self._judging: asyncio.Task | None = None
    self._ready = concurrent.futures.Future()
    self._thread = threading.Thread(
      target=asyncio.run, args=[self._stay()], name='processes', daemon=True
    )
    self._thread.start()
    self._loop, self._closed = self._ready.result()

  async def _stay(self) -> None:
    closed = asyncio.Event()
    self._ready.set_result((asyncio.get_running_loop(), closed))
    await closed.wait()

  def call(self, coroutine: Coroutine) -> Any:
    """Runs a coroutine in the thread, and waits for its result."""
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

  def meet(self) -> None:
    """Waits until all processes have joined; process 0 runs the arbiter."""
    listener = None
    if self._place.process_id == 0:
      listener = arbiter.listen(self._place, self._limits.start)
    self.call(self._meet(listener))

  async def _meet(self, listener: socket.socket | None) -> None:
    own = None
    if listener:
      own, other = socket.socketpair()
      first = roster.Peer(0, socket.gethostname(), os.getpid(), self._facts)
      place, now = self._place, time.monotonic()
      members = roster.Roster(
        first, place.num_processes, place.hosts, self._limits, now
      )
      judge = arbiter.Arbiter(listener, other, members, self._token)
      self._judging = asyncio.create_task(judge.serve())
    await self.member.join(own)

  async def drain(self) -> None:
    """In process 0, waits until the arbiter has notified all processes."""
    if self._judging:
      await asyncio.wait([self._judging], timeout=arbiter.LINGER + 1)

  async def _end(self, error: errors.RestartableError) -> None:
    """Ends the process, even if the main thread hangs."""
    await self.drain()
    jax_service.end_process(error.exit_code, str(error))

  def end_early(self, error: BaseException) -> None:
    """Reports an error; raises another process's error if that caused it."""
    words = str(error).strip().splitlines()[:1]
    text = ': '.join([type(error).__name__, *words])[:1000]
    code, grace, other = getattr(error, 'exit_code', 1), roster.GRACE, None
    if isinstance(error, SystemExit) and isinstance(error.code, int):
      code = error.code & 0xFF or 1
    elif isinstance(error, KeyboardInterrupt):
      code = errors.InterruptedByUserError.exit_code
    on_purpose = isinstance(error, errors.RestartableError)
    if isinstance(error, errors.PreemptedError):
      # All processes raise this error after the same step, so they get more
      # time. A process that never raises it is ended.
      grace = max(roster.GRACE, math.ceil(self._limits.lost))
    try:
      other = self.call(self.member.fail(code, text, grace))
    finally:
      caused = other is not None and not on_purpose
      jax_service.abandon(other.exit_code if caused else code)
    if caused:
      raise other from error

  def close(self) -> None:
    """Closes the connections; in process 0, after all know the verdict."""
    self._loop.call_soon_threadsafe(self.member.close)
    self.call(self.drain())
    self._loop.call_soon_threadsafe(self._closed.set)
    self._thread.join(_CLOSE)


def _token(place: cluster.Place) -> str:
  """Returns a digest that only the processes of one launch share."""
  secret = os.environ.get('VIT_JAX_LAUNCH_TOKEN', '')
  return hashlib.sha256(f'{place.job}\n{secret}'.encode()).hexdigest()


def _facts() -> dict[str, Any]:
  """Returns facts that must be the same in all processes, by name."""
  words, skip = [], False
  for word in sys.argv[1:]:
    name, equals, _ = word.lstrip('-').partition('=')
    if not skip and name not in _PLACE_FLAGS:
      words.append(word)
    skip = not skip and name in _PLACE_FLAGS and not equals
  digest = hashlib.sha256()
  package = pathlib.Path(__file__).parents[2]
  for file in sorted(package.rglob('*.py')):
    digest.update(f'{file.relative_to(package)}\n'.encode())
    digest.update(file.read_bytes())
  return {
    'command line': words,
    'versions': installed.versions(),
    'vit_jax source (SHA-256)': digest.hexdigest()[:12],
  }
