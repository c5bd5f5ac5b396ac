"""Writes a run's metrics: `metrics.jsonl`, TensorBoard's files, trackers."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import buckets, event_files, trackers
from vit_jax.workdir.buckets import growing, uploading

# Seconds for the last upload of a run that ends with an exception: few, because
# the machine may be taken away soon.
_LAST_UPLOAD_TIMEOUT = 20.0

FILE = 'metrics.jsonl'


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """Returns the rows of a run's `metrics.jsonl`, oldest first; [] if no file.

  Skips damaged lines with a warning. Skips an incomplete last line silently,
  because a process may have died while writing it.
  """
  path = epath.Path(workdir) / FILE
  rows = []
  text = growing.read(path).decode(errors='replace')
  lines = text.splitlines(keepends=True)
  for number, line in enumerate(lines, start=1):
    try:
      if line.endswith('\n'):
        rows.append(parse(line))
    except ValueError as error:
      logging.warning('%s, line %d, is left out: %s', path, number, error)
  return rows


def parse(line: str | bytes) -> dict[str, float]:
  """Returns the row in a line; raises ValueError if the line is damaged."""
  row = json_text.loads(line)
  if (
    not isinstance(row, dict)
    or type(row.get('step')) is not int
    or any(type(value) not in (int, float) for value in row.values())
  ):
    raise ValueError(
      'expected an object of numbers with a whole number as step.'
    )
  return row


class MetricWriter:
  """Appends metrics to the work directory; does nothing except in process 0.

  Object stores such as `gs://` cannot append. There a thread regularly uploads
  new numbers in parts (see `buckets.growing`), which `close` merges.
  """

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    start_step: int,
    tensorboard: bool,
    upload_every: float = 30.0,
    check: Callable[[], None] = lambda: None,
    tracked: tuple[str, str] = ('', '{}'),
  ):
    """Opens the files, and drops rows after the step that the run resumes from.

    Args:
      workdir: an existing directory.
      start_step: the last step whose row is kept; the run repeats later steps.
      tensorboard: whether to write event files too.
      upload_every: minimum seconds between uploads to an object store.
      check: called before each upload; raises if the run must not write.
      tracked: the trackers to send the metrics to, and the config as JSON;
        see `trackers.Trackers`.
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
    self._trackers = trackers.Trackers(workdir, *tracked)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one row without NaN and infinite values.

    The row is on disk when this returns, unless the disk is full; in an object
    store it is there after `flush`.

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
    self._trackers.add(step, values)
    if self._uploader:
      self._uploader.soon()

  def flush(self) -> None:
    """Waits until all rows are on disk or in the object store.

    Raises:
      StoreError, OSError: a row could not be written.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if self._active and self._uploader:
      with self._store_errors():
        self._uploader.now(buckets.patience)
    elif self._active:
      self._lines.flush()

  def close(self) -> None:
    """Flushes and merges the parts; may be called again.

    While another exception is handled, this raises nothing.

    Raises:
      StoreError, OSError: a row could not be written.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if not self._active:
      return
    self._active = False
    handled = sys.exception()
    try:
      self._close_files(handled)
    finally:
      # Last, since it may wait: a preempted machine must upload first.
      self._trackers.close(handled)

  def _close_files(self, handled: BaseException | None) -> None:
    if self._uploader:
      if handled:
        buckets.patience = min(buckets.patience, _LAST_UPLOAD_TIMEOUT)
      self._uploader.close()
      try:
        with self._store_errors():
          self._uploader.now(_LAST_UPLOAD_TIMEOUT if handled else -1)
          growing.merge(self._path)
          if self._board:
            self._board.close()
      except (errors.StoreError, ValueError) as error:
        if handled is None:
          raise
        # A run that was taken over ends with that error, which is reported.
        if not isinstance(error, errors.TakenOverError):
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
    except Exception as error:  # Each object store's client has its own errors.
      raise errors.StoreError(
        f'{self._path} cannot be written: {" ".join(str(error).split())}. Start'
        ' the same command again to go on from the last checkpoint.'
      ) from error


class _Lines:
  """A local file of lines; lines that a full disk refuses are written later."""

  def __init__(self, path: epath.Path):
    self._path = path
    self._waiting = b''

  def append(self, line: str) -> None:
    """Writes a line to disk; warns once if that fails."""
    warned = bool(self._waiting)
    self._waiting += line.encode()
    try:
      self.flush()
    except OSError as error:
      if not warned:
        logging.warning(
          '%s cannot be written: %s. Writing is retried until the next'
          ' checkpoint; if it still fails then, the run ends.',
          *(self._path, error.strerror),
        )

  def flush(self) -> None:
    """Writes the waiting lines; raises OSError if that fails."""
    if not self._waiting:
      return
    with open(self._path, 'ab', buffering=0) as file:
      size = file.seek(0, os.SEEK_END)
      rest = self._waiting
      try:
        while rest:  # A disk that is full takes a part, and then says why.
          rest = rest[file.write(rest) :]
      except OSError as error:
        error.filename = os.fspath(self._path)
        with contextlib.suppress(OSError):
          file.truncate(size)  # Removes an incomplete line.
        raise
    self._waiting = b''


class _Events:
  """TensorBoard's local file; a full disk ends it with a warning."""

  def __init__(self, workdir: epath.PathLike, purge_step: int | None):
    self._workdir = workdir
    self._file = None
    with event_files.warn_of_errors(workdir, FILE):
      self._file = event_files.EventFile(workdir, purge_step)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    file, self._file = self._file, None
    if file:
      with event_files.warn_of_errors(self._workdir, FILE):
        file.add(step, values)
        self._file = file

  def close(self) -> None:
    if self._file:
      with event_files.warn_of_errors(self._workdir, FILE):
        self._file.close()
