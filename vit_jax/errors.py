"""Errors that end a run with one message and no traceback.

So do `ValueError` and `OSError`; these are what is neither.
"""


class NonFiniteError(RuntimeError):
  """The loss or the gradient is NaN or infinite."""


class ReadError(RuntimeError):
  """A data source failed to read a record."""
