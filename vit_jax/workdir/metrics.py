"""Writes a run's metrics: `metrics.jsonl`, TensorBoard's files, wandb."""

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import buckets, files, trackers

FILE = 'metrics.jsonl'
# In the rows of steps that were saved: `fingerprint.number` of the state.
FINGERPRINT = 'fingerprint'
_TIMES = ('images_per_sec', 'input_wait', 'eta_sec', 'unix_time')
# Seconds between two uploads to an object store, at least.
_UPLOAD_EVERY = 30.0
# Seconds for an upload while the run goes on. Also for the last one of a run
# that ends with an exception, because the machine may be taken away soon.
_SHORT_PATIENCE = 10.0


def read(workdir: epath.PathLike) -> list[dict[str, float]]:
  """Returns the rows of a run's `metrics.jsonl`, oldest first; [] if no file.

  Skips damaged lines with a warning. Skips an incomplete last line silently,
  because a process may have died while writing it.
  """
  path = epath.Path(workdir) / FILE
  rows = []
  lines = files.content(path).decode(errors='replace').splitlines(keepends=True)
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


def repeatable(row: Mapping[str, float]) -> dict[str, float]:
  """Returns the numbers of a row that a repetition of the run gives again."""
  return {
    key: value
    for key, value in row.items()
    if key not in _TIMES and '/seconds' not in key and 'goodput/' not in key
  }


class MetricWriter:
  """Appends metrics to the work directory; does nothing except in process 0.

  Object stores such as `gs://` cannot append. There the files are in a local
  folder, and those that have grown are written again as a whole: a run of
  300,000 steps with a row of 20 numbers every 50 steps ends with 5 MB.
  """

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    start_step: int,
    tensorboard: bool,
    check: Callable[[], None] = lambda: None,
    tracked: Mapping[str, Any] | None = None,
  ):
    """Opens the files, and drops rows after the step that the run resumes from.

    Args:
      workdir: an existing directory.
      start_step: the last step whose row is kept; the run repeats later steps.
      tensorboard: whether to write event files too.
      check: called before each upload; raises if the run must not write.
      tracked: the complete config, flat, if `trackers.Tracker` is to send the
        metrics, too.
    """
    self._active = jax.process_index() == 0
    if not self._active:
      return
    workdir = epath.Path(workdir)
    rows = read(workdir)
    text = ''.join(
      json.dumps(row) + '\n' for row in rows if row['step'] <= start_step
    ).encode()
    files.write_shared(workdir / FILE, text)
    folder, self._mirror = workdir, None
    if buckets.is_store(workdir):
      self._mirror = _Mirror(workdir, check)
      (self._mirror.folder / FILE).write_bytes(text)
      folder = self._mirror.folder
    self._path, self._events = folder / FILE, None
    if tensorboard:
      self._events = _Events(folder, start_step + 1 if rows else None)
    self._tracker = trackers.Tracker(workdir, tracked) if tracked else None

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes one row without NaN and infinite values.

    The row is on disk when this returns. In an object store it is there after
    `flush`, or after a later row.

    Raises:
      OSError: the row could not be written, such as to a full disk.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if not self._active:
      return
    values = {k: float(v) for k, v in values.items() if math.isfinite(v)}
    line = (json.dumps({'step': step} | values) + '\n').encode()
    with open(self._path, 'ab') as file:
      file.write(line)
    values.pop(FINGERPRINT, None)  # No curve can show it.
    if self._events:
      self._events.add(step, values)
    if self._tracker:
      self._tracker.log(step, values)
    if self._mirror:
      self._mirror.upload_if_due()

  def flush(self) -> None:
    """Waits until all rows are in the object store.

    Raises:
      StoreError: a row could not be written.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if self._active and self._mirror:
      self._mirror.upload()

  def close(self) -> None:
    """Flushes; may be called again.

    While another exception is handled, this raises nothing.

    Raises:
      StoreError: a row could not be written.
      TakenOverError: another run has the directory (see `ownership.held`).
    """
    if not self._active:
      return
    handled = sys.exception()
    try:
      if self._events:
        self._events.close()
      if self._mirror:
        self._mirror.close(in_time=handled is None)
    except (OSError, errors.StoreError, errors.TakenOverError) as error:
      if handled is None:
        raise
      logging.error('%s', error)
    finally:
      self._active = False
      # Last, since it may wait: a preempted machine must upload first.
      if self._tracker:
        self._tracker.finish(handled)


class _Mirror:
  """A local folder, and the same files in an object store.

  Attributes:
    folder: the local folder.
  """

  def __init__(self, workdir: epath.Path, check: Callable[[], None]):
    """Makes the local folder.

    Args:
      workdir: the directory in the object store.
      check: called before each upload.
    """
    self._temporary = tempfile.TemporaryDirectory()
    self.folder = epath.Path(self._temporary.name)
    self._workdir, self._check = workdir, check
    self._uploaded = {}
    self._due = time.monotonic() + _UPLOAD_EVERY

  def upload_if_due(self) -> None:
    """Uploads from time to time; if that fails, the next time will do.

    The loop waits for this, but only a short time for a service that does not
    answer.
    """
    if time.monotonic() < self._due:
      return
    try:
      with buckets.at_most(_SHORT_PATIENCE):
        self.upload()
    except errors.StoreError as error:
      logging.warning('%s The run goes on, and tries again.', error)
    self._due = time.monotonic() + _UPLOAD_EVERY

  def upload(self) -> None:
    """Uploads the files that have grown.

    Raises:
      StoreError: that failed.
      TakenOverError: `check` raised it.
    """
    try:
      for file in self.folder.iterdir():
        content = file.read_bytes()
        if self._uploaded.get(file.name) != len(content):
          self._check()
          (self._workdir / file.name).write_bytes(content)
          self._uploaded[file.name] = len(content)
    except (errors.StoreError, errors.TakenOverError):
      raise
    except Exception as error:  # Each client has its own errors.
      raise errors.StoreError(
        f'{self._workdir / FILE} cannot be written:'
        f' {" ".join(str(error).split())}. Start the same command again to go'
        ' on from the last checkpoint.'
      ) from error

  def close(self, in_time: bool) -> None:
    """Uploads the rest; waits a short time only if not `in_time`."""
    with buckets.at_most(math.inf if in_time else _SHORT_PATIENCE):
      self.upload()
    self._temporary.cleanup()


class _Events:
  """TensorBoard's file; it is on disk after each call.

  tensorboardX's own writer has a thread, which ends on a full disk; then the
  next call would wait for it forever.
  """

  def __init__(self, folder: epath.Path, purge_step: int | None):
    """Opens a new file.

    Args:
      folder: an existing folder.
      purge_step: TensorBoard ignores older files' values from this step on.
    """
    # Imported late: it takes as long as a third of JAX, and few need it.
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._file = event_file_writer.EventsWriter(os.fspath(folder / 'events'))
    if purge_step is not None:
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(step=purge_step, session_log=start)

  def add(self, step: int, values: Mapping[str, float]) -> None:
    found = [
      self._summary.Value(tag=name, simple_value=value)
      for name, value in values.items()
    ]
    self._write(step=step, summary=self._summary(value=found))

  def close(self) -> None:
    self._file.close()

  def _write(self, **what: Any) -> None:
    self._file.write_event(self._event(wall_time=time.time(), **what))
    self._file.flush()
