"""Errors that end a run with one message and no traceback, and exit codes.

`ValueError` and `OSError` do so too; these are what is neither. The exit code
of a command is 0 if everything was done, else 1 or the error's `exit_code`, so
that whoever restarts runs knows which of them to start again.
"""


class NonFiniteError(RuntimeError):
  """The loss or the gradient is NaN or infinite."""


class ReadError(RuntimeError):
  """A data source failed to read a record."""


class SaveError(RuntimeError):
  """A checkpoint could not be written, or not within the time limit."""


class RestartableError(RuntimeError):
  """The run ended early through no fault of its own; start it again."""

  exit_code = 1


class TakenOverError(ValueError):
  """Another run has the work directory now."""


class StoreError(SaveError, RestartableError):
  """The bucket of the work directory did not answer within the time."""

  exit_code = 76


class PreemptedError(RestartableError):
  """The machine is about to be taken away; the state was saved."""

  exit_code = 75


class InterruptedByUserError(PreemptedError):
  """Ctrl-C; the state was saved. Whoever restarts runs leaves this one."""

  exit_code = 130


class HostLostError(RestartableError):
  """A process of the run never joined, left, or does not answer.

  Or the run could not start for now: a port or the cloud did not answer.
  """

  exit_code = 76


class OtherProcessError(RestartableError):
  """Another process of the run ended with an error, with this exit code."""

  def __init__(self, text: str, exit_code: int):
    super().__init__(text)
    self.exit_code = exit_code


class StuckError(RestartableError):
  """Nothing finished within the time limit."""

  exit_code = 77
