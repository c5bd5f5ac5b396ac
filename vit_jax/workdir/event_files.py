"""Writes TensorBoard's files without tensorboardX's thread.

On a full disk, that thread ends with a traceback, and the next call that adds
numbers would wait for the thread forever.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging


class EventFile:
  """One event file, which is on disk after each call.

  Every method raises OSError if the disk cannot be written.
  """

  def __init__(
    self, folder: os.PathLike | str, purge_step: int | None, suffix: str = ''
  ):
    """Opens a new file.

    Args:
      folder: an existing folder.
      purge_step: TensorBoard ignores older files' values from this step on.
      suffix: the end of the file's name, after the time.
    """
    # Imported late: it takes as long as a third of JAX, and few need it.
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2

    self._file = event_file_writer.EventsWriter(
      os.path.join(folder, 'events'), suffix
    )
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(purge_step, session_log=start)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    from tensorboardX.proto import summary_pb2

    found = [
      summary_pb2.Summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
    ]
    self._write(step, summary=summary_pb2.Summary(value=found))

  def close(self) -> None:
    self._file.close()

  def _write(self, step: int, **what: Any) -> None:
    from tensorboardX.proto import event_pb2

    self._file.write_event(
      event_pb2.Event(wall_time=time.time(), step=step, **what)
    )
    self._file.flush()


@contextlib.contextmanager
def warn_of_errors(folder: os.PathLike | str, numbers: str) -> Iterator[None]:
  """Turns an OSError inside into a warning.

  Args:
    folder: the folder of the event file, for the warning.
    numbers: the name of the file with all numbers, for the warning.
  """
  try:
    yield
  except OSError as error:
    logging.warning(
      "TensorBoard's file in %s ends here: %s. %s has all numbers.",
      *(folder, error.strerror or error, numbers),
    )
