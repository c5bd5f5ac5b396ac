"""Where a run's numbers go: `metrics.jsonl` and TensorBoard."""

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import buckets, event_files
from vit_jax.workdir.buckets import growing, uploading

# Seconds for the last upload of a run that ends early: the machine may be taken
# away meanwhile.
_LAST_PATIENCE = 20.0

FILE = 'metrics.jsonl'


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """The lines of a run's `metrics.jsonl`, oldest first; [] if there is none.

  A line that is cut off or damaged is left out, with a warning unless it is the
  last one, at which a process may have died.
  """
  path = epath.Path(workdir) / FILE
  rows = []
  text = growing.read(path).decode(errors='replace')
  lines = text.splitlines(keepends=True)
  for number, line in enumerate(lines, start=1):
    try:
      if line.endswith('\n'):
        rows.append(_parse(line))
    except ValueError as error:
      logging.warning('%s, line %d, is left out: %s', path, number, error)
  return rows


def _parse(line: str) -> dict[str, float]:
  row = json_text.loads(line)
  if (
    not isinstance(row, dict)
    or type(row.get('step')) is not int
    or any(type(value) not in (int, float) for value in row.values())
  ):
    raise ValueError('it is no row of numbers with a step.')
  return row


class MetricWriter:
  """Appends named numbers to the work directory; silent on other hosts.

  Object stores such as `gs://` cannot append: there a thread uploads what is
  new now and then, in parts (see `buckets.parts`), which `close` joins.
  """

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    start_step: int,
    tensorboard: bool,
    upload_every: float = 30.0,
    check: Callable[[], None] = lambda: None,
  ):
    """Opens the files, dropping lines past the step the run resumes from.

    Args:
      workdir: an existing directory.
      start_step: what was logged after this step is about to be repeated.
      tensorboard: whether to write event files too.
      upload_every: seconds between uploads to an object store, at least.
      check: called before each; raises if there may be none.
    """
    self._active = jax.process_index() == 0
    if not self._active:
      return
    self._path = epath.Path(workdir) / FILE
    store = buckets.is_store(workdir)
    if store:
      growing.merge(self._path)
    rows = read(workdir)
    kept = [row for row in rows if row['step'] <= start_step]
    text = ''.join(json.dumps(row) + '\n' for row in kept)
    if store:
      self._path.write_text(text)
    else:
      temporary = self._path.with_name(FILE + '.tmp')
      temporary.write_text(text)
      temporary.replace(self._path)
    self._board = self._uploader = None
    self._lines = _Lines(self._path)
    if tensorboard:
      events = growing.Events if store else _Events
      self._board = events(workdir, start_step + 1 if rows else None)
    if store:
      self._check = check
      self._text = growing.Text(self._path, len(text.encode()))
      self._uploader = uploading.Uploader(
        self._upload, upload_every, self._path
      )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one line; NaN and inf are left out.

    It is on disk when this returns, if it can be; in an object store after
    `flush`.

    Raises:
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if not self._active:
      return
    values = {k: float(v) for k, v in values.items() if math.isfinite(v)}
    line = json.dumps({'step': step} | values) + '\n'
    if self._uploader:
      self._text.append(line)
    else:
      self._lines.append(line)
    if self._board:
      self._board.add(step, values)
    if self._uploader:
      self._uploader.soon()

  def flush(self) -> None:
    """Returns when all that was written is on disk, or in the store.

    Raises:
      StoreError, OSError: it could not be written.
      ValueError: another run has the directory (see `ownership.held`).
    """
    if self._active and self._uploader:
      with self._store_errors():
        self._uploader.now(buckets.patience)
    elif self._active:
      self._lines.flush()

  def close(self) -> None:
    """Flushes, and puts parts together. May be called again.

    Raises:
      StoreError, OSError: it could not be written. Only a message while another
        exception is handled.
    """
    if not self._active:
      return
    self._active = False
    handled = sys.exception()
    if self._uploader:
      if handled:
        buckets.patience = min(buckets.patience, _LAST_PATIENCE)
      self._uploader.close()
      try:
        with self._store_errors():
          self._uploader.now(_LAST_PATIENCE if handled else -1)
          growing.merge(self._path)
          if self._board:
            self._board.close()
      except (errors.StoreError, ValueError) as error:
        if handled is None:
          raise
        if not isinstance(error, errors.TakenOverError):  # Said already.
          logging.error('%s', error)
      return
    if self._board:
      self._board.close()
    try:
      self._lines.flush()
    except OSError:
      if handled is None:
        raise

  def _upload(self) -> None:
    self._check()
    self._text.upload()
    if self._board:
      self._board.upload()

  @contextlib.contextmanager
  def _store_errors(self) -> Iterator[None]:
    try:
      yield
    except (errors.StoreError, ValueError):
      raise
    except Exception as error:  # Each client has its own.
      raise errors.StoreError(
        f'{self._path} cannot be written: {" ".join(str(error).split())}. Start'
        ' the same command again to go on from the last checkpoint.'
      ) from error


class _Lines:
  """A local file; what the disk does not take now is written later."""

  def __init__(self, path: epath.Path):
    self._path = path
    self._waiting = b''

  def append(self, line: str) -> None:
    """Writes a line, on disk when this returns; else says so, once."""
    told = bool(self._waiting)
    self._waiting += line.encode()
    try:
      self.flush()
    except OSError as error:
      if not told:
        logging.warning(
          '%s cannot be written: %s. It is tried again until the next'
          ' checkpoint.',
          *(self._path, error.strerror),
        )

  def flush(self) -> None:
    """Raises OSError if something is left that cannot be written."""
    if not self._waiting:
      return
    with open(self._path, 'ab', buffering=0) as file:
      size = file.seek(0, os.SEEK_END)
      try:
        if file.write(self._waiting) < len(self._waiting):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      except OSError:
        with contextlib.suppress(OSError):
          file.truncate(size)  # No half line.
        raise
    self._waiting = b''


class _Events:
  """TensorBoard's file, of which every row is on disk at once."""

  def __init__(self, workdir: epath.PathLike, purge_step: int | None):
    self._workdir = workdir
    self._file = None
    with event_files.told(workdir, FILE):
      self._file = event_files.EventFile(workdir, purge_step)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    file, self._file = self._file, None
    if file:
      with event_files.told(self._workdir, FILE):
        file.add(step, values)
        self._file = file

  def close(self) -> None:
    if self._file:
      with event_files.told(self._workdir, FILE):
        self._file.close()
