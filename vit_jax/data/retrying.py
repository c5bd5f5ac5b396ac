"""Reads a record again if the file system or the bucket did not answer."""

import time

from vit_jax.data.source import Record, View
from vit_jax.runtime import errors

_TRIES = 5
_WAIT_SEC = 1.0  # Before the second try; twice as long before each further one.
# Nothing changes by another try: the file is missing, or not for us.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)


def read(view: View, index: int) -> Record:
  """Reads a record.

  Raises:
    OSError: there is no such file, or it may not be read.
    ReadError: the source did not answer, even after some tries. The record may
      be in order, so it must not be given up.
  """
  for attempt in range(_TRIES):
    try:
      return view[index]
    except _FINAL:
      raise
    except OSError as error:
      last = error
    if attempt < _TRIES - 1:
      time.sleep(_WAIT_SEC * 2**attempt)
  raise errors.ReadError(
    f'record {index} of {view.split!r} of {view.source.info.spec!r} cannot be'
    f' read, after {_TRIES} tries: {last}. Start the same command again when'
    ' the storage answers; it goes on where it was.'
  ) from last
