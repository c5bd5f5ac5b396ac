"""A work directory has one owner at a time: two runs do not mix in it."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import distributed, json_text
from vit_jax.workdir import buckets

FILE = 'owner.json'
# Seconds to wait for an owner that is just ending.
PATIENCE = 10.0
# The same for one on another machine, which may be dead.
PATIENCE_ELSEWHERE = 150.0
_TAKEN = (errno.EAGAIN, errno.EACCES)
# What file systems without locks answer.
_NO_LOCKS = (
  *(errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
  *(errno.EINVAL, errno.EPERM, errno.ENOTTY, errno.EOPNOTSUPP),
)


@contextlib.contextmanager
def held(workdir: epath.Path) -> Iterator[Callable[[], None]]:
  """Holds a work directory, which exists; all processes must call this.

  The lock is the operating system's, on `WORKDIR/owner.json`, which says who
  has or had it. It ends with its process, however that ends; on file systems
  that several machines share, that of a dead machine ends when the server says
  so, after about 90 seconds with NFS 4. In a bucket the file is a lease, see
  `buckets.lease`: that of a dead process ends after two minutes.

  Yields:
    A function to be called before anything is written, which raises ValueError
    if another run has taken the directory meanwhile.

  Raises:
    ValueError: another run has it; names its host, process and start.
    OSError: the file cannot be written.
  """
  with contextlib.ExitStack() as stack:
    problem, check = '', lambda: None
    if jax.process_index() == 0 and buckets.is_bucket(workdir):
      try:
        check = stack.enter_context(_lease(workdir)).check
      except ValueError as error:
        problem = str(error)
    elif jax.process_index() == 0 and '://' not in str(workdir):
      problem = _take(workdir, stack)
    elif jax.process_index() == 0:
      logging.warning(
        '%s is in an object store that nobody can own: start no second run in'
        ' it. gs:// has what it takes.',
        workdir,
      )
    if problem := distributed.broadcast(problem):
      raise ValueError(problem)
    yield check


def _lease(workdir: epath.Path):
  # Imported late: it imports gcsfs.
  from vit_jax.workdir.buckets import lease

  # The number tells runs apart that have the same host and process, as in
  # containers.
  owner = _owner() | {'run': secrets.token_hex(8)}
  return lease.Lease(workdir / FILE, json.dumps(owner).encode(), _described)


def _take(workdir: epath.Path, stack: contextlib.ExitStack) -> str:
  """Takes the lock until the stack ends; or says who has it."""
  # Without emptying what it says of the owner.
  path = workdir / FILE
  file = stack.enter_context(open(path, 'a+', encoding='utf-8'))  # noqa: SIM115
  file.seek(0)
  text = file.read()
  here = f'"host": "{platform.node()}"' in text or not text
  end = time.monotonic() + (PATIENCE if here else PATIENCE_ELSEWHERE)
  while True:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      break
    except OSError as error:
      if error.errno in _NO_LOCKS:
        logging.warning(
          '%s has no locks (%s): start no second run in it.', workdir, error
        )
        return ''
      if error.errno not in _TAKEN:
        raise
    if time.monotonic() > end:
      file.seek(0)
      return (
        f'{workdir} is in use by {_described(file.read())}: wait until it ends,'
        ' stop it, or use another --workdir.'
      )
    time.sleep(0.2)
  file.truncate(0)
  with contextlib.suppress(OSError):  # A full disk shows elsewhere.
    json.dump(_owner(), file)
    file.flush()
  return ''


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
  except (ValueError, TypeError, KeyError):  # It has just been taken.
    return 'another run'
