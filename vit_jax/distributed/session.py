"""`connected`: one process's part in a run of several, from start to end."""

import contextlib
import errno
import functools
import hashlib
import ipaddress
import os
import pathlib
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging

from vit_jax import errors, installed
from vit_jax.distributed import arbiter, cluster, member, roster, runtime

# Seconds.
_BIND = 20.0  # For the port of a run that has just ended.
_FINISH = 900.0  # From the end of one process's work to that of the others'.

_PLACE_FLAGS = ('coordinator_address', 'num_processes', 'process_id')
_member: member.Member | None = None


@contextlib.contextmanager
def connected(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  start_timeout: float = 300.0,
  lost_timeout: float = 60.0,
) -> Iterator[None]:
  """Makes this process one of a run; does nothing if it is the only one.

  Must come before JAX's devices are first used. The processes meet at process
  0, on a TCP port next to the coordinator's: the one above it, or 4096 below
  if that is 61440 or more (of Slurm and Open MPI, where the port above is
  another job's). Cloud TPUs' is 8483. When all have come, JAX's runtime is
  started. The connections stay open and carry signs of life. When a process is
  lost, every other one logs which, and why, and exits with
  `HostLostError.exit_code`, whatever its main thread waits for. When a process
  ends with an error, the others hear its message and end likewise; but not
  when it is a `RestartableError`, which all raise alike, and not when all
  raise within seconds. A process that ends early exits with its error's code
  as soon as its main thread ends; what else is registered to happen at exit is
  left out, as JAX would wait there for the others.

  Args:
    coordinator_address: HOST:PORT of JAX's coordination service, in process 0.
      None: as the cluster tells (Cloud TPU, also several slices, GKE, Slurm,
      Open MPI), as for `jax.distributed.initialize`. The same holds for the
      next two; all three are given, or none.
    num_processes: how many processes there are.
    process_id: which one this is, from 0.
    start_timeout: seconds for all processes to come.
    lost_timeout: seconds without a sign of life after which one is lost.

  Raises:
    ValueError: the arguments are wrong, or the processes do not fit together
      (their number, ids, command lines or versions).
    HostLostError: a process did not come, and which; an error of the body
      comes from the loss of one; or what may be over at the next start: the
      port is still taken, the cluster does not answer, JAX's runtime does not
      start.
    OSError: the port cannot be used at all, or what the cluster tells cannot be
      read.
  """
  began = time.monotonic()
  place = cluster.find(
    coordinator_address, num_processes, process_id, start_timeout
  )
  if place is None:
    yield
    return
  start_timeout = max(start_timeout - (time.monotonic() - began), 1.0)
  with _in_run(place, start_timeout, lost_timeout):
    yield


@contextlib.contextmanager
def _in_run(
  place: cluster.Place, start_timeout: float, lost_timeout: float
) -> Iterator[None]:
  global _member
  with contextlib.ExitStack() as stack:
    this = _meet(place, start_timeout, lost_timeout, stack)
    restore, exits = runtime.delay_abort(), None
    try:
      runtime.start(place, lost_timeout)
      logging.info('All %d processes are there.', place.num_processes)
      _member = this
      try:
        yield
      except SystemExit as error:
        if error.code not in (None, 0):
          raise
        exits = error
      orderly = this.finish(_FINISH)
    except BaseException as error:
      _end_early(this, error)
      raise
    finally:
      _member = None
    if orderly:
      runtime.stop()
      restore()
    else:
      runtime.abandon(0)
    if exits:
      raise exits


def broadcast(value: Any) -> Any:
  """Returns process 0's value in all processes; all must call it.

  Costs no device time, but waits for the slowest process; works before the
  devices are first used. All processes must agree in the same order: threads
  are safe to call it, but only if that order is kept.

  Args:
    value: what JSON can hold (tuples come back as lists). Used in process 0
      only, and small: up to some megabytes.

  Raises:
    RuntimeError: JAX's runtime was started without `connected`; or other
      processes wait in `any_true` meanwhile.
    HostLostError: the run has ended meanwhile.
  """
  if _alone():
    return value
  return _member.exchange('broadcast', value)[0]


def any_true(flag: bool) -> bool:
  """Returns whether any process gives True; all must call it.

  For its cost, its order and its errors see `broadcast`.
  """
  if _alone():
    return flag
  return any(_member.exchange('any_true', bool(flag)))


def _alone() -> bool:
  if _member is None and jax.distributed.is_initialized():
    raise RuntimeError(
      'jax.distributed was initialized by other code: the processes have no'
      ' connection. Use vit_jax.distributed.connected instead.'
    )
  return _member is None


def _meet(
  place: cluster.Place,
  start_timeout: float,
  lost_timeout: float,
  stack: contextlib.ExitStack,
) -> member.Member:
  """Waits until all processes have come; in process 0 it starts the arbiter."""
  own, drained = None, lambda: None
  if place.process_id == 0:
    listener = _listen(place, min(_BIND, start_timeout))
    own, other = socket.socketpair()
    members = roster.Roster(
      place.num_processes,
      place.hosts,
      start_timeout,
      lost_timeout,
      time.monotonic(),
    )
    judge = arbiter.Arbiter(listener, other, members, lost_timeout)
    judge.start()
    drained = functools.partial(judge.drained.wait, arbiter.LINGER + 1)
    stack.callback(drained)
  this = member.Member(
    place, _facts(), start_timeout, lost_timeout, own, drained
  )
  stack.callback(this.close)
  this.join_run()
  return this


def _listen(place: cluster.Place, patience: float) -> socket.socket:
  """Takes the port; waits if the last run has not left it yet.

  Raises:
    HostLostError: it has not left it for long.
    OSError: the port cannot be had at all.
  """
  coordinator = int(place.coordinator_address.rpartition(':')[2])
  deadline = time.monotonic() + patience
  while True:
    port = coordinator
    try:
      # JAX does not say which port it could not take.
      _bind(place, coordinator).close()
      port = place.port
      return _bind(place, port)
    except OSError as error:
      in_use = error.errno == errno.EADDRINUSE
      if not in_use or time.monotonic() > deadline:
        # The last run's process 0 may still be ending: a matter of minutes.
        kind = errors.HostLostError if in_use else OSError
        raise kind(
          f'Process 0 cannot use port {port}: {os.strerror(error.errno)}. It'
          f' needs {coordinator}, that of coordinator_address, and'
          f' {place.port}, where the processes meet. If another run or program'
          ' holds them, choose another port for coordinator_address, or where'
          ' the cluster gives it, by the environment variable'
          ' JAX_COORDINATOR_PORT.'
        ) from error
    time.sleep(0.3)


def _bind(place: cluster.Place, port: int) -> socket.socket:
  try:
    local = ipaddress.ip_address(place.host).is_loopback
  except ValueError:
    local = place.host == 'localhost'
  if local:
    family = socket.AF_INET6 if ':' in place.host else socket.AF_INET
    return socket.create_server((place.host, port), family=family)
  backlog = max(place.num_processes, 128)
  if socket.has_dualstack_ipv6():
    try:
      return socket.create_server(
        ('', port),
        family=socket.AF_INET6,
        dualstack_ipv6=True,
        backlog=backlog,
      )
    except OSError as error:
      if error.errno == errno.EADDRINUSE:
        raise
  # The kernel knows IPv6, but has no address of it.
  return socket.create_server(('', port), backlog=backlog)


def _facts() -> dict[str, Any]:
  """What must be the same in all processes, by name."""
  words, skip = [], False
  for word in sys.argv[1:]:
    name, equals, _ = word.lstrip('-').partition('=')
    if not skip and name not in _PLACE_FLAGS:
      words.append(word)
    skip = not skip and name in _PLACE_FLAGS and not equals
  digest = hashlib.sha256()
  package = pathlib.Path(__file__).parent.parent
  for file in sorted(package.rglob('*.py')):
    digest.update(f'{file.relative_to(package)}\n'.encode())
    digest.update(file.read_bytes())
  return {
    'command line': words,
    'versions': installed.versions(),
    'vit_jax source (SHA-256)': digest.hexdigest()[:12],
  }


def _end_early(this: member.Member, error: BaseException) -> None:
  """Tells the others; raises HostLostError if the error is their fault."""
  words = str(error).strip().splitlines()[:1]
  text = ': '.join([type(error).__name__, *words])[:1000]
  code, lost = getattr(error, 'exit_code', 1), ''
  if isinstance(error, SystemExit) and isinstance(error.code, int):
    code = error.code
  try:
    if isinstance(error, errors.RestartableError):
      this.leave(text)
    else:
      lost = this.fail(text)
  finally:
    runtime.abandon(errors.HostLostError.exit_code if lost else code)
  if lost:
    raise errors.HostLostError(lost) from error
