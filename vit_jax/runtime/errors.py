"""Errors that end a run with one message and no traceback; exit codes.

`ValueError` and `OSError` end a run in the same way. A command exits with 0 if
it did everything, else with the error's `exit_code`, or 1 if the error has
none. Launchers decide by the exit code whether to start the run again.
"""

import errno

# Stands for a value that could not be read, and is not compared.
UNKNOWN = 'unknown'

_RIGHTS = 'This process may not do that there: change the rights, or the path.'
_ROOM = 'Make room for what this command writes, and start it again.'
# Number of an error -> what to do.
_REMEDIES = {
  errno.EACCES: _RIGHTS,
  errno.EPERM: _RIGHTS,
  errno.EROFS: 'Choose a path that can be written.',
  errno.ENOENT: 'Correct the path, or make what is missing.',
  errno.EEXIST: 'Move away what is there, or choose another path.',
  errno.EISDIR: 'Move the directory away, or choose another path.',
  errno.ENOSPC: _ROOM,
  errno.EDQUOT: _ROOM,
  errno.EFBIG: 'Raise the limit of the size of a file (ulimit -f unlimited).',
  errno.EMFILE: 'Raise the limit of open files (ulimit -n).',
}


def described(error: OSError) -> str:
  """Returns the path, what the system refused there, and what to do."""
  path, reason = error.filename2 or error.filename, error.strerror
  path = path if isinstance(path, str) else ''  # A number is no help.
  if not reason:
    return str(error)  # It is not of the system, and has a text of its own.
  remedy = _REMEDIES.get(error.errno, '')
  return (f'{path}: ' if path else '') + f'{reason}. {remedy}'.rstrip()


class NonFiniteError(RuntimeError):
  """The loss or the gradient is NaN or infinite."""


class ReadError(RuntimeError):
  """A data source failed to read a record."""


class SaveError(RuntimeError):
  """A checkpoint could not be written, or not in time."""


class RestartableError(RuntimeError):
  """The run ended early through no fault of its own; start it again."""

  exit_code = 1


class TakenOverError(ValueError):
  """Another run has taken over the work directory."""


class StoreError(SaveError, RestartableError):
  """The bucket of the work directory did not answer in time."""

  exit_code = 76


class PreemptedError(RestartableError):
  """The machine is about to be taken away; the state was saved."""

  exit_code = 75


class InterruptedByUserError(PreemptedError):
  """The user pressed Ctrl-C; the state was saved. Launchers do not restart."""

  exit_code = 130


class CorruptionError(RuntimeError):
  """The same computation gave two results, or a record of it was changed."""

  exit_code = 78


class HostLostError(RestartableError):
  """A collective failed, or JAX's coordination service did not start."""

  exit_code = 76


class StuckError(RestartableError):
  """Nothing finished within the time limit."""

  exit_code = 77


def code_of(error: BaseException) -> int:
  """Returns the exit code of a command that ends with this error."""
  if isinstance(error, SystemExit):
    return error.code if isinstance(error.code, int) else int(bool(error.code))
  if isinstance(error, KeyboardInterrupt):
    return InterruptedByUserError.exit_code
  return getattr(error, 'exit_code', 1)
