"""Raises the limit of open files for the shards of a data set."""

import os
import resource

# Files of libraries, logs, sockets, and checkpoints.
_OTHERS = 256
# macOS reports no hard limit, but refuses to set no limit.
_MOST = 2**16


def allow(files: int, what: str) -> None:
  """Raises this process's soft limit so that it may open more files.

  Child processes inherit the limit.

  Args:
    files: number of files to open in addition to those already open.
    what: what the files are, for the error message.

  Raises:
    ValueError: the hard limit is too low.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  try:
    already = len(os.listdir('/proc/self/fd'))
  except OSError:
    already = 0
  wanted = already + files + _OTHERS
  if soft == resource.RLIM_INFINITY or wanted <= soft:
    return
  if hard != resource.RLIM_INFINITY and hard < already + files:
    raise ValueError(
      f'{what} are {files:,} files that stay open, but the system lets this'
      f' process open {hard:,} at most, and {already:,} are open already. Raise'
      ' the hard limit (`ulimit -Hn`; LimitNOFILE= of a service, --ulimit'
      f' nofile= of a container) to {wanted:,} or more.'
    )
  most = max(_MOST, wanted) if hard == resource.RLIM_INFINITY else hard
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
