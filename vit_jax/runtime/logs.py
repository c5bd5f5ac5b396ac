"""What is printed on the console and kept in `train.log`."""

import contextlib
import copy
import logging as python_logging
import os
import pathlib
import sys

from absl import logging
from etils import epath

from vit_jax.runtime import printable

_PACKAGE = str(pathlib.Path(__file__).parents[1])


class _Printable(python_logging.Formatter):
  """Shows what a terminal would obey, and keeps lines."""

  def format(self, record):
    return printable.text(super().format(record))


class _Formatter(_Printable):
  """`12:34:56 text`, with the level in front of what is not information.

  Of libraries without tracebacks: what ends a run is raised, and said in words.
  """

  def format(self, record):
    if not _is_own(record):
      record = copy.copy(record)
      record.exc_info = record.exc_text = None
    text = super().format(record)
    level = f'{record.levelname.lower()}: '
    return text if record.levelno <= python_logging.INFO else level + text


def _own_or_warning(record: python_logging.LogRecord) -> bool:
  """Leaves out the running commentary of libraries that log through absl."""
  if _is_own(record):
    return True
  # What a save fails of is raised, and said once.
  if record.name == 'asyncio' or '/orbax/' in record.pathname:
    return record.levelno == python_logging.WARNING
  return record.levelno >= python_logging.WARNING


def _is_own(record: python_logging.LogRecord) -> bool:
  return record.pathname.startswith(_PACKAGE)


def _tell_unraisable(found) -> None:
  """As Python does, but for what TensorStore finds after a save has failed.

  Its threads print the same traceback for each array.
  """
  if 'Event loop is closed' not in str(found.exc_value):
    sys.__unraisablehook__(found)


def set_up_console() -> None:
  """Short lines, and only this package's own (of others, warnings)."""
  sys.unraisablehook = _tell_unraisable
  logging.use_absl_handler()
  handler = logging.get_absl_handler()
  handler.setFormatter(_Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
  handler.addFilter(_own_or_warning)
  logging.set_stderrthreshold('info')


def only_warnings() -> None:
  """Of several processes one prints what all of them have to say."""
  logging.get_absl_handler().setLevel(python_logging.WARNING)


class _File(python_logging.FileHandler):
  """Says once that it can't be written; the run does not end for it."""

  _failed = False

  def handleError(self, record):
    if not self._failed:
      self._failed = True
      error = sys.exc_info()[1]
      print(f'warning: {self.baseFilename}: {error}', file=sys.stderr)

  def close(self):
    # What is left to write must not take the place of the run's own error.
    with contextlib.suppress(OSError):
      super().close()


@contextlib.contextmanager
def log_file(workdir: epath.PathLike):
  """While open, appends everything logged to `WORKDIR/train.log`.

  An exception is logged with its traceback, which the console may not show.
  Only on a local file system: object stores can't append.
  """
  path = os.fspath(workdir)
  if '://' in path:
    yield
    return
  handler = _File(os.path.join(path, 'train.log'))
  handler.setFormatter(_Printable('%(asctime)s %(levelname)s %(message)s'))
  logger = logging.get_absl_logger()
  logger.addHandler(handler)
  try:
    yield
  except Exception:
    handler.handle(
      python_logging.makeLogRecord(
        dict(levelname='ERROR', msg='Failed:', exc_info=sys.exc_info())
      )
    )
    raise
  finally:
    logger.removeHandler(handler)
    handler.close()
