"""TensorBoard's files, written without tensorboardX's thread.

At a full disk that thread ends with a traceback, and whoever adds a row of
numbers then waits for it for ever.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2


class EventFile:
  """One file. What is added is on disk at once.

  Every method raises OSError where the disk does not take it.
  """

  def __init__(
    self, folder: os.PathLike | str, purge_step: int | None, suffix: str = ''
  ):
    """Opens a new file.

    Args:
      folder: an existing one.
      purge_step: TensorBoard leaves out what older files have from it on.
      suffix: the end of the file's name, after its time.
    """
    self._file = event_file_writer.EventsWriter(
      os.path.join(folder, 'events'), suffix
    )
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(purge_step, session_log=start)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    found = [
      summary_pb2.Summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
    ]
    self._write(step, summary=summary_pb2.Summary(value=found))

  def close(self) -> None:
    self._file.close()

  def _write(self, step: int, **what: Any) -> None:
    self._file.write_event(
      event_pb2.Event(wall_time=time.time(), step=step, **what)
    )
    self._file.flush()


@contextlib.contextmanager
def told(folder: os.PathLike | str, numbers: str) -> Iterator[None]:
  """Makes a warning of what the disk does not take.

  Args:
    folder: of the file that ends, for the warning.
    numbers: what has all numbers, for the warning.
  """
  try:
    yield
  except OSError as error:
    logging.warning(
      "TensorBoard's file in %s ends here: %s. %s has all numbers.",
      *(folder, error.strerror or error, numbers),
    )
