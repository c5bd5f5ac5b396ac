"""Formats and filters the log on the console and in `train.log`."""

import contextlib
import copy
import logging as python_logging
import os
import pathlib
import stat
import traceback

from absl import logging
from etils import epath

from vit_jax.runtime import printable

_PACKAGE = str(pathlib.Path(__file__).parents[1])


class _Printable(python_logging.Formatter):
  """Escapes control characters, which a terminal would obey; keeps lines."""

  def format(self, record):
    return printable.text(super().format(record))


class _Formatter(_Printable):
  """Writes `12:34:56 text`, with the level in front of warnings and errors.

  Tracebacks that libraries log are left out: an error that ends the run is
  raised anyway and gets its own message.
  """

  def format(self, record):
    if not _is_own(record):
      record = copy.copy(record)
      record.exc_info = record.exc_text = None
    text = super().format(record)
    level = f'{record.levelname.lower()}: '
    return text if record.levelno <= python_logging.INFO else level + text


def _own_or_warning(record: python_logging.LogRecord) -> bool:
  """Returns False for information that libraries log through absl."""
  return _is_own(record) or record.levelno >= python_logging.WARNING


def _is_own(record: python_logging.LogRecord) -> bool:
  return record.pathname.startswith(_PACKAGE)


def set_up_console() -> None:
  """Logs short lines of this package, and only warnings of libraries."""
  logging.use_absl_handler()
  handler = logging.get_absl_handler()
  handler.setFormatter(_Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
  handler.addFilter(_own_or_warning)
  logging.set_stderrthreshold('info')


def only_warnings() -> None:
  """Silences information in this process; process 0 logs it for all."""
  logging.get_absl_handler().setLevel(python_logging.WARNING)


def leave_closed_terminal() -> None:
  """Sends the output nowhere if its terminal is closed.

  Otherwise each write to it would raise OSError.
  """
  for number in (1, 2):
    with contextlib.suppress(OSError):
      is_device = stat.S_ISCHR(os.fstat(number).st_mode)
      if is_device and not os.isatty(number):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


@contextlib.contextmanager
def log_file(workdir: epath.PathLike):
  """While open, appends what is logged to `WORKDIR/train.log`.

  Of libraries, only warnings and errors count. Tracebacks are kept, which the
  console may not show. Does nothing in an object store, which can't append.
  """
  path = os.fspath(workdir)
  if '://' in path:
    yield
    return
  handler = python_logging.FileHandler(os.path.join(path, 'train.log'))
  # A full disk ends the run with an error of its own: when it writes metrics.
  handler.handleError = lambda record: None
  handler.setFormatter(_Printable('%(asctime)s %(levelname)s %(message)s'))
  handler.addFilter(_own_or_warning)
  logger = python_logging.getLogger()  # Of all libraries, and of absl.
  logger.addHandler(handler)
  try:
    yield
  except Exception as error:
    # Not on the console, where the error gets its own message.
    text = 'Failed:\n' + ''.join(traceback.format_exception(error))
    handler.handle(logger.makeRecord('', 40, _PACKAGE, 0, text, (), None))
    raise
  finally:
    logger.removeHandler(handler)
    # An error of the last write must not replace the run's own error.
    with contextlib.suppress(OSError):
      handler.close()
