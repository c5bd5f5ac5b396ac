"""Follows the metrics of runs: each look continues where the last one ended."""

import array
import contextlib
import io
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.compare import frames
from vit_jax.workdir import buckets, files, metrics, ownership

# The most points of a curve: about one per pixel.
POINTS = 600
# Seconds between looks at local files, and if runs are in a bucket, whose files
# are read as a whole each time.
PAUSE, PAUSE_OF_BUCKETS = 3.0, 30.0
# Without a lock to tell, a run that is silent for this long counts as stopped.
_SILENT = 900.0
# Measurements that are shown as facts, not as curves.
_NO_CURVE = ('step', 'unix_time', 'eta_sec')


def thinned(values: Sequence[float]) -> dict[str, list[float]]:
  """Returns at most POINTS points of a curve, with five significant digits.

  Args:
    values: step, hours and value of each row, one row after another.

  Returns:
    `step`, `hours` and `mean`. Of a longer curve, a point stands for as many
    rows as the others, all but the last: it has the last step and hours of
    them, and also their `low` and `high`.
  """
  step, hours, value = np.reshape(values, (-1, 3)).T
  count = 1
  while len(value) > POINTS * count:
    count *= 2
  first = np.arange(0, len(value), count)
  last = np.minimum(first + count, len(value)) - 1
  found = {
    'hours': hours[last],
    'mean': np.add.reduceat(value, first) / (last - first + 1),
  }
  if count > 1:
    found['low'] = np.minimum.reduceat(value, first)
    found['high'] = np.maximum.reduceat(value, first)
  return {'step': step[last].astype(int).tolist()} | {
    name: [float(f'{v:.5g}') for v in column] for name, column in found.items()
  }


class WatchedRun:
  """What a run has written so far.

  Attributes:
    in_bucket: whether it is in an object store.
    read: when a read last ended without an error, in seconds of
      `time.monotonic`; None before.
    failed: whether a read has failed.
    news: what `Watcher.news` tells of the run; None before the first read.
    changed: the look at which `news` last changed.
  """

  def __init__(self, workdir: epath.Path):
    self.in_bucket = buckets.is_store(workdir)
    self.read, self.failed = None, False
    self.news: dict[str, Any] | None = None
    self.changed = 0
    self._workdir = workdir
    self._begin()

  def _begin(self) -> None:
    # Metric -> step, hours and value of each row, 24 bytes in all.
    self._curves: dict[str, array.array] = {}
    self._latest: dict[str, float] = {}
    self._offset = 0
    self._tail = b''  # The last line that was read, to know the file again.

  def look(self) -> bool:
    """Reads the new rows; returns whether anything has changed."""
    before = self._offset, self._tail, (self.news or {}).get('state')
    path = self._workdir / metrics.FILE
    with (
      io.BytesIO(files.content(path))
      if self.in_bucket or not path.exists()
      else path.open('rb')
    ) as file:
      file.seek(self._offset - len(self._tail))
      if file.read(len(self._tail)) != self._tail:
        # A resumed run has removed rows.
        self._begin()
        file.seek(0)
      for line in file:
        if not line.endswith(b'\n'):  # The run is writing it.
          break
        self._offset, self._tail = self._offset + len(line), line
        with contextlib.suppress(ValueError):  # A damaged line.
          self._add(metrics.parse(line))
    state = self._state()
    if self.news and before == (self._offset, self._tail, state):
      return False
    total = (config_lib.load(self._workdir) or {}).get('total_steps')
    self.news = {
      'state': state,
      'heard': self._latest.get('unix_time'),
      'total': total if isinstance(total, int) else None,
      'latest': self._latest.copy(),
      'curves': {key: thinned(values) for key, values in self._curves.items()},
    }
    return True

  def _add(self, row: dict[str, float]) -> None:
    # JSON has no infinite numbers, but Python reads them.
    # A whole number may be too large for a float.
    row = {k: v for k, v in row.items() if abs(v) < math.inf}
    self._latest |= row
    hours = frames.hours(self._latest)
    point = (row['step'], 0.0 if math.isnan(hours) else hours)
    for key, value in row.items():
      if key not in _NO_CURVE and not key.endswith('_seconds'):
        self._curves.setdefault(key, array.array('d')).extend((*point, value))

  def _state(self) -> str:
    if results.finished_at(self._workdir) is not None:
      return 'finished'
    held = None if self.in_bucket else ownership.is_held(self._workdir)
    if held is None:
      held = time.time() - self._latest.get('unix_time', 0) < _SILENT
    return 'running' if held else 'stopped'


class Watcher:
  """Follows all runs in some folders, in a thread of its own.

  The thread replaces the news of a run as a whole. So answers need no lock, and
  never wait for a file system.
  """

  def __init__(self, folders: Sequence[epath.PathLike]):
    """Finds the runs.

    Raises:
      ValueError: see `frames.find`.
    """
    self._folders = folders
    self._runs: dict[str, WatchedRun] = {}
    self._look = 0
    self._find()

  def start(self) -> None:
    """Starts the thread, which ends with the process."""
    threading.Thread(target=self._follow, daemon=True).start()

  def _follow(self) -> None:
    while True:
      self.look()
      in_bucket = any(run.in_bucket for run in self._runs.values())
      time.sleep(PAUSE_OF_BUCKETS if in_bucket else PAUSE)

  def _find(self) -> None:
    self._runs = {
      name: self._runs.get(name) or WatchedRun(workdir)
      for name, workdir in frames.find(*self._folders).items()
    }

  def look(self) -> None:
    """Reads what is new in all runs, and looks for new runs."""
    # If a folder is gone for now, the page keeps what it has.
    with contextlib.suppress(OSError, ValueError):
      self._find()
    for name, run in self._runs.items():
      try:
        if run.look():
          run.changed = self._look = self._look + 1
        run.read = time.monotonic()
      except Exception as error:  # Each object store has its own errors.
        if not run.failed:
          run.failed = True
          logging.warning('%s cannot be read: %s', name, error)

  def news(self, since: int) -> dict[str, Any]:
    """Returns what has changed, ready for JSON.

    Args:
      since: the `look` of the last answer; 0 for everything.

    Returns:
      `look`; `time` in seconds since 1970; the `names` of all runs; `unread`,
      name -> seconds since the run was last read, if it has been; and `runs`,
      name -> the facts and curves of each run that has changed.
    """
    runs, look, now = self._runs, self._look, time.monotonic()
    # A number beyond ours is that of an earlier server.
    since = since if since <= look else 0
    return {
      'look': look,
      'time': time.time(),
      'names': list(runs),
      'unread': {
        name: round(now - run.read)
        for name, run in runs.items()
        if run.read is not None
      },
      'runs': {
        name: run.news for name, run in runs.items() if run.changed > since
      },
    }
