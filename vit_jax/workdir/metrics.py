"""Writes a run's metrics: `metrics.jsonl`, TensorBoard's files, trackers."""

import contextlib
import json
import math
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import buckets, files, trackers

FILE = 'metrics.jsonl'
# Seconds for the last upload of a run that ends with an exception: few, because
# the machine may be taken away soon.
_LAST_UPLOAD_TIMEOUT = 20.0


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """Returns the rows of a run's `metrics.jsonl`, oldest first; [] if no file.

  Skips damaged lines with a warning. Skips an incomplete last line silently,
  because a process may have died while writing it.
  """
  path = epath.Path(workdir) / FILE
  rows = []
  lines = content(path).decode(errors='replace').splitlines(keepends=True)
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


def content(path: epath.PathLike) -> bytes:
  """Returns the content of a file of metrics; b'' if it does not exist.

  A run of an earlier version that was killed in a bucket left its last rows in
  parts, `metrics/OFFSET.jsonl`, which hold the bytes from that offset on.
  """
  path = epath.Path(path)
  parts = [(int(part.stem), _bytes(part)) for part in _parts(path)]
  whole = _bytes(path)
  for offset, part in parts:
    if offset <= len(whole) < offset + len(part):
      whole = whole[:offset] + part
  return whole


def merge_parts(path: epath.Path) -> None:
  """Makes one file of a file and its parts, see `content`."""
  if parts := _parts(path):
    path.write_bytes(content(path))
    for part in parts:
      part.unlink()


def _parts(path: epath.Path) -> list[epath.Path]:
  folder = path.with_suffix('')
  if not buckets.is_store(path) or not folder.exists():
    return []
  parts = [part for part in folder.iterdir() if part.stem.isdigit()]
  return sorted(parts, key=lambda part: int(part.stem))


def _bytes(path: epath.Path) -> bytes:
  try:
    return path.read_bytes()
  except FileNotFoundError:
    return b''


class MetricWriter:
  """Appends metrics to the work directory; does nothing except in process 0.

  Object stores such as `gs://` cannot append. There a thread writes the whole
  file again while there are new rows: a run of 300,000 steps with a row of 20
  numbers every 50 steps ends with 5 MB.
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
    workdir = epath.Path(workdir)
    path = workdir / FILE
    merge_parts(path)
    rows = read(workdir)
    text = ''.join(
      json.dumps(row) + '\n' for row in rows if row['step'] <= start_step
    )
    with files.atomic(path) as temporary:
      temporary.write_text(text)
    purge_step = start_step + 1 if rows else None
    if buckets.is_store(workdir):
      self._file = _InBucket(path, text.encode(), upload_every, check)
    else:
      self._file = _Local(path)
    if tensorboard:
      self._file.events = _Events(self._file.folder, purge_step)
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
    if self._file.events:
      self._file.events.add(step, values)
    self._file.append((json.dumps({'step': step} | values) + '\n').encode())
    self._trackers.add(step, values)

  def flush(self) -> None:
    """Waits until all rows are on disk or in the object store.

    Raises:
      StoreError, OSError: a row could not be written.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if self._active:
      self._file.flush()

  def close(self) -> None:
    """Flushes; may be called again.

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
      self._file.close(in_time=handled is None)
    except (OSError, errors.StoreError, errors.TakenOverError) as error:
      if handled is None:
        raise
      # A run that was taken over ends with that error, which is reported.
      if not isinstance(error, errors.TakenOverError):
        logging.error('%s', error)
    finally:
      # Last, since it may wait: a preempted machine must upload first.
      self._trackers.close(handled)


class _Local:
  """A local file of rows; rows that a full disk refuses are written later."""

  def __init__(self, path: epath.Path):
    self.folder = path.parent
    self.events: _Events | None = None
    self._path = path
    self._waiting = b''

  def append(self, line: bytes) -> None:
    """Writes a line to disk; warns once if that fails."""
    warned = bool(self._waiting)
    self._waiting += line
    try:
      self.flush()
    except OSError as error:
      if not warned:
        logging.warning(
          '%s cannot be written: %s. The next rows are kept until the next'
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

  def close(self, in_time: bool) -> None:
    del in_time
    if self.events:
      self.events.close()
    self.flush()


class _InBucket:
  """A file of rows in an object store, and TensorBoard's file."""

  def __init__(
    self,
    path: epath.Path,
    text: bytes,
    every: float,
    check: Callable[[], None],
  ):
    """Starts the thread.

    Args:
      path: the path of the file, which is written already.
      text: its content.
      every: minimum seconds between two uploads.
      check: called before each upload.
    """
    self._temporary = tempfile.TemporaryDirectory()
    self.folder = self._temporary.name
    self.events: _Events | None = None
    self._path = path
    self._text = text
    self._written = len(text)
    self._every = every
    self._check = check
    self._taken_over: errors.TakenOverError | None = None
    self._new, self._end = threading.Event(), threading.Event()
    self._one = threading.Lock()
    threading.Thread(target=self._work, name='upload', daemon=True).start()

  def append(self, line: bytes) -> None:
    if self._taken_over:
      raise self._taken_over
    self._text += line
    self._new.set()

  def flush(self, timeout: float | None = None) -> None:
    """Uploads what is new; raises StoreError, or the error of `check`."""
    timeout = buckets.patience if timeout is None else timeout
    reason = f'an upload has not ended for {timeout:g} s'
    if self._one.acquire(timeout=timeout):
      try:
        return self._upload()
      except (errors.StoreError, errors.TakenOverError):
        raise
      except Exception as error:  # Each client has its own errors.
        reason = ' '.join(str(error).split())
      finally:
        self._one.release()
    raise errors.StoreError(
      f'{self._path} cannot be written: {reason}. Start the same command again'
      ' to go on from the last checkpoint.'
    )

  def close(self, in_time: bool) -> None:
    """Uploads the rest; waits a short time only if not `in_time`."""
    self._end.set()
    self._new.set()
    if not in_time:
      buckets.patience = min(buckets.patience, _LAST_UPLOAD_TIMEOUT)
    if self.events:
      self.events.close()
    self.flush()
    self._temporary.cleanup()

  def _upload(self) -> None:
    text = self._text
    if len(text) == self._written:
      return
    self._check()
    self._path.write_bytes(text)
    for path in pathlib.Path(self.folder).iterdir():  # TensorBoard's file.
      (self._path.parent / path.name).write_bytes(path.read_bytes())
    self._written = len(text)

  def _work(self) -> None:
    while self._new.wait() and not self._end.is_set():
      self._new.clear()
      try:
        self.flush()
      except errors.TakenOverError as error:
        self._taken_over = error
        return
      except errors.StoreError as error:
        logging.warning('%s The run goes on, and tries again.', error)
        self._new.set()
      self._end.wait(self._every)


class _Events:
  """TensorBoard's local file; a full disk ends it with a warning.

  It is on disk after each call. tensorboardX would write in a thread, which
  ends on a full disk; then the next call would wait for it forever.
  """

  def __init__(self, folder: os.PathLike | str, purge_step: int | None):
    """Opens a new file.

    Args:
      folder: an existing folder.
      purge_step: TensorBoard ignores older files' values from this step on.
    """
    # Imported late: it takes as long as a third of JAX, and few need it.
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2, summary_pb2
    self._folder = folder
    self._file = None
    with self._warned():
      self._file = event_file_writer.EventsWriter(
        os.path.join(folder, 'events')
      )
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(purge_step, session_log=start)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    found = [
      self._summary.Summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
    ]
    self._write(step, summary=self._summary.Summary(value=found))

  def close(self) -> None:
    if self._file:
      with self._warned():
        self._file.close()

  def _write(self, step: int, **what: Any) -> None:
    file, self._file = self._file, None
    if file:
      with self._warned():
        file.write_event(
          self._event.Event(wall_time=time.time(), step=step, **what)
        )
        file.flush()
        self._file = file

  @contextlib.contextmanager
  def _warned(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      logging.warning(
        "TensorBoard's file in %s ends here: %s. %s has all numbers.",
        *(self._folder, error.strerror or error, FILE),
      )
