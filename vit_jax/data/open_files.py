"""How many files a process may hold open, of which a data set's shards are."""

import os
import resource

# Libraries, logs, sockets, and what the checkpoints are written to.
_OTHERS = 256
# Where the hard limit is none, as on macOS, the system still refuses to set
# that.
_MOST = 2**16


def allow(files: int, what: str) -> None:
  """Raises this process's own limit as far as the system lets it.

  Processes that it starts have the same limits.

  Args:
    files: that are to be open beside those that are now.
    what: they are, for the error.

  Raises:
    ValueError: so many may not be open.
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
