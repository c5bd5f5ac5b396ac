"""Errors that end a run with one message and no traceback; exit codes.

`ValueError` and `OSError` end a run in the same way. A command exits with 0 if
it did everything, else with the error's `exit_code`, or 1 if the error has
none. Launchers decide by the exit code whether to start the run again.
"""

import errno
import os

_RIGHTS = 'This process may not do that there: change the rights, or the path.'
_BROKEN = 'Look after the file system, and start the same command again.'
_FULL = 'Make room for what this command writes, and start it again.'
_OPEN_FILES = 'Raise the limit of open files (ulimit -n).'
_SIZE = 'Raise the limit of the size of a file (ulimit -f unlimited).'
# Number of an error of a path -> what was expected, or what to do.
_REMEDIES = {
  errno.EACCES: _RIGHTS,
  errno.EPERM: _RIGHTS,
  errno.EROFS: 'Choose a path that can be written.',
  errno.ENOENT: 'Correct the path, or make what is missing.',
  errno.ENOTDIR: 'Expected directories before the last part: choose a path'
  ' without the file.',
  errno.EEXIST: 'Expected a directory or nothing: move away what is there, or'
  ' choose another path.',
  errno.EISDIR: 'Expected a file: move the directory away, or choose another'
  ' path.',
  errno.ENAMETOOLONG: 'Most file systems take names of up to 255 bytes: choose'
  ' a shorter one.',
  errno.ELOOP: 'Remove the link, or choose another path.',
  errno.EIO: _BROKEN,
  errno.ESTALE: _BROKEN,
  errno.ENOTCONN: _BROKEN,
}
# The same for errors that may lack a path.
_LIMITS = {
  errno.ENOSPC: _FULL,
  errno.EDQUOT: _FULL,
  errno.EFBIG: _SIZE,
  errno.EMFILE: _OPEN_FILES,
  errno.ENFILE: _OPEN_FILES,
}


def described(error: OSError) -> str:
  """Returns the path, what the system refused there, and what to do."""
  path, reason = path_of(error), error.strerror
  if not reason:
    return str(error)  # It is not of the system, and has a text of its own.
  parts = path.split(os.sep) if path else []
  starts = (os.sep.join(parts[: i + 1]) for i in range(len(parts)))
  wrong = next((p for p in starts if p and not os.path.isdir(p)), '')
  if os.path.islink(wrong) and not os.path.exists(wrong):
    reason += f': {wrong} is a link to {os.readlink(wrong)}, which is not there'
  elif error.errno == errno.ENOTDIR and wrong:
    reason += f': {wrong} is a file'
  remedy = (_LIMITS | _REMEDIES if path else _LIMITS).get(error.errno, '')
  return (f'{path}: ' if path else '') + f'{reason}. {remedy}'.rstrip()


def path_of(error: OSError) -> str:
  """Returns the path that an error names, the later one of two; '' if none."""
  path = error.filename2 or error.filename
  return path if isinstance(path, str) else ''


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
