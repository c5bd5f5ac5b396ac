"""Locks a work directory for one run, whose processes must all see it."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from typing import IO

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import distributed, errors, json_text
from vit_jax.workdir import buckets, files

FILE = 'owner.json'


class InUseError(ValueError):
  """Another process holds a lock."""


# Seconds to wait for an owner that may be ending.
PATIENCE = 10.0
# The same for one on another machine: it may be dead, which NFS 4 notices
# after about 90 seconds.
PATIENCE_ELSEWHERE = 150.0
# Within which all machines must see a file that one of them wrote. Network file
# systems remember for a while that a file does not exist.
PATIENCE_SHARED = 60.0


@contextlib.contextmanager
def held(workdir: epath.Path) -> Iterator[Callable[[], None]]:
  """Locks an existing work directory; all processes must call this.

  The operating system locks `WORKDIR/owner.json`, which names the current or
  last owner. The lock ends with its process, even if that is killed; on a
  network file system the server decides when the lock of a dead machine ends.
  In a bucket the file is a lease, see `buckets.lease`.

  Yields:
    A function to call before each write, which raises ValueError if another run
    has taken the directory in the meantime.

  Raises:
    ValueError: another run has the directory; the message names its host,
      process and start. Or the file cannot be written, or some process does not
      see it.
  """
  with contextlib.ExitStack() as stack:
    problem, check = '', lambda: None
    if jax.process_index() == 0:
      try:
        check = stack.enter_context(_held(workdir))
      except OSError as error:
        problem = errors.described(error)
      except ValueError as error:
        problem = str(error)
    if problem := distributed.broadcast(problem):
      raise ValueError(problem)
    _check_shared(workdir)
    yield check


@contextlib.contextmanager
def _held(workdir: epath.Path) -> Iterator[Callable[[], None]]:
  """Does what `held` does, for one process."""
  if buckets.is_bucket(workdir):
    # Imported late: it imports gcsfs.
    from vit_jax.workdir.buckets import lease

    # The random number identifies the run: in containers, two runs may have the
    # same host and process.
    owner = json.dumps(_owner() | {'run': secrets.token_hex(8)})
    with lease.Lease(workdir / FILE, owner.encode(), _described) as taken:
      yield taken.check
    return
  if buckets.is_store(workdir):
    logging.warning(
      '%s is in an object store without locks: do not start a second run in'
      ' it. Work directories on gs:// are protected.',
      workdir,
    )
    yield lambda: None
    return
  owner = files.content(workdir / FILE).decode(errors='replace')
  here = not owner or f'"host": "{platform.node()}"' in owner
  patience = PATIENCE if here else PATIENCE_ELSEWHERE
  with locked(workdir / FILE, f'{workdir} is in use by', patience):
    yield lambda: None


@contextlib.contextmanager
def locked(path: epath.Path, message: str, patience: float) -> Iterator[None]:
  """Locks a local file, which names the owner; its folder must exist.

  Where the file system has no locks, this only warns.

  Args:
    path: the file; the lock ends with this process, but the file stays.
    message: the begin of the error's message, before the owner's name.
    patience: seconds to wait for the lock.

  Raises:
    InUseError: another process has the lock.
    OSError: the disk or the server failed.
  """
  # Mode 'a+' keeps the name of the present owner.
  with open(path, 'a+', encoding='utf-8') as file:
    end = time.monotonic() + patience
    while (taken := _lock(file, fcntl.LOCK_EX)) and time.monotonic() < end:
      time.sleep(0.2)
    file.seek(0)
    if taken:
      raise InUseError(
        f'{message} {_described(file.read())}: wait until it ends, stop it, or'
        ' use another --workdir.'
      )
    if taken is None:
      logging.warning(
        '%s has no locks: do not start a second run in it.', path.parent
      )
    file.truncate(0)
    with contextlib.suppress(OSError):  # Other writes report a full disk.
      json.dump(_owner(), file)
      file.flush()
      os.fsync(file.fileno())  # Other machines read it while it is locked.
    yield


def is_held(workdir: epath.Path) -> bool | None:
  """Whether a run has a local work directory; None if locks can't tell.

  Holds the lock for an instant, for which a run that starts waits.
  """
  try:
    with open(workdir / FILE, 'rb') as file:
      return _lock(file, fcntl.LOCK_SH)
  except FileNotFoundError:
    return False
  except OSError:
    return None


def _lock(file: IO, kind: int) -> bool | None:
  """Tries to lock a file; returns whether it is taken, None if no locks.

  Raises:
    OSError: the disk or the server failed.
  """
  try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno in (errno.EAGAIN, errno.EACCES):
      return True
    if error.errno in (errno.EIO, errno.ESTALE):
      raise OSError(error.errno, error.strerror, file.name) from error
    return None  # The file system has none.
  return False


def _owner() -> dict:
  return {
    'host': platform.node(),
    'process': os.getpid(),
    'since': time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime()),
  }


def _described(text: str | bytes) -> str:
  try:
    owner = json_text.loads(text)
    return (
      f'process {owner["process"]} on {owner["host"]}, since {owner["since"]}'
    )
  except (ValueError, TypeError, KeyError):  # The owner is just writing it.
    return 'another run'


def _check_shared(workdir: epath.Path) -> None:
  """Raises ValueError unless all processes see what the owner has written."""
  if jax.process_count() == 1:
    return
  owner = distributed.broadcast(_seen(workdir))
  end = time.monotonic() + PATIENCE_SHARED
  while (unseen := _seen(workdir) != owner) and time.monotonic() < end:
    time.sleep(0.2)
  if distributed.any_true(unseen):
    raise ValueError(
      f'Not every process sees what process 0 writes to --workdir={workdir}: it'
      ' must be on storage that all hosts share, such as gs://BUCKET/PATH or a'
      ' network file system.'
    )


def _seen(workdir: epath.Path) -> str:
  with contextlib.suppress(OSError):  # It may still appear.
    return files.content(workdir / FILE).decode()
  return ''
