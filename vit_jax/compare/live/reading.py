"""Follows the metrics of runs: a file that has changed is read again."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax import results
from vit_jax.compare import expected, frames
from vit_jax.workdir import buckets, metrics, ownership

# The most points of a curve: about one per pixel.
POINTS = 600
# Seconds between looks at local files, and if runs are in a bucket.
PAUSE, PAUSE_OF_BUCKETS = 3.0, 30.0
# Without a lock to tell, a run that is silent for this long counts as stopped.
_SILENT = 900.0
# Measurements that are shown as facts, not as curves.
_NO_CURVE = ('step', 'unix_time', 'eta_sec', metrics.FINGERPRINT)


def thinned(
  values: Sequence[tuple[float, float, float]],
) -> dict[str, list[float]]:
  """Returns at most POINTS points of a curve, with five significant digits.

  Args:
    values: step, hours and value of each row.

  Returns:
    `step`, `hours` and `mean`. Of a longer curve, a point stands for as many
    rows as the others, all but the last: it has the last step and hours of
    them, and also their `low` and `high`.
  """
  step, hours, value = np.array(values, float).T
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
    news: what `Watcher.news` tells of the run; None before the first read.
    changed: the look at which `news` last changed.
  """

  def __init__(self, workdir: epath.Path, curves: Sequence[expected.Curve]):
    self.in_bucket = buckets.is_store(workdir)
    self.news: dict[str, Any] | None = None
    self.changed = 0
    self._workdir, self._file, self._expected = workdir, None, curves

  def look(self) -> bool:
    """Reads the rows if there are new ones; returns if anything has changed."""
    path, before = self._workdir / metrics.FILE, self._file
    self._file = path.stat() if path.exists() else None
    if self.news and before == self._file:
      known, state = self.news['state'], self._state(self.news['latest'])
      self.news = self.news | {'state': state}
      return state != known
    latest, curves = {}, {}
    rows = metrics.read(self._workdir)
    for row in rows:
      # JSON has no infinite numbers, but Python reads them.
      # A whole number may be too large for a float.
      row = {k: v for k, v in row.items() if abs(v) < math.inf}
      latest |= row
      hours = frames.hours(latest)
      point = (row['step'], 0.0 if math.isnan(hours) else hours)
      for key, value in row.items():
        if key not in _NO_CURVE and not key.endswith('_seconds'):
          curves.setdefault(key, []).append((*point, value))
    config = frames.flat_config(self._workdir)
    total = config.get('total_steps')
    per_step = frames.epochs_per_step(config)
    self.news = {
      'state': self._state(latest),
      'heard': latest.get('unix_time'),
      'total': total if isinstance(total, int) else None,
      'latest': latest,
      'curves': {key: thinned(values) for key, values in curves.items()},
      'epochs_per_step': None if math.isnan(per_step) else per_step,
    }
    if self._expected:
      report = expected.report(self._expected, config, rows)
      self.news['expected'] = dataclasses.asdict(report)
    return True

  def _state(self, latest: Mapping[str, float]) -> str:
    if results.finished_at(self._workdir) is not None:
      return 'finished'
    held = None if self.in_bucket else ownership.is_held(self._workdir)
    if held is None:
      held = time.time() - latest.get('unix_time', 0) < _SILENT
    return 'running' if held else 'stopped'


class Watcher:
  """Follows all runs in some folders; any thread may ask for news."""

  def __init__(
    self,
    folders: Sequence[epath.PathLike],
    curves: Sequence[expected.Curve] = (),
  ):
    """Finds the runs.

    Args:
      folders: work directories, or folders of them.
      curves: to compare the runs with, see `expected.report`; () for none.

    Raises:
      ValueError: see `frames.find`.
    """
    self._folders, self._curves = folders, curves
    self._runs: dict[str, WatchedRun] = {}
    self._look, self._next = 0, 0.0
    self._lock = threading.Lock()
    self._find()

  def _find(self) -> None:
    self._runs = {
      name: self._runs.get(name) or WatchedRun(workdir, self._curves)
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
      except Exception as error:  # Each object store has its own errors.
        logging.warning('%s cannot be read: %s', name, error)
    in_bucket = any(run.in_bucket for run in self._runs.values())
    pause = PAUSE_OF_BUCKETS if in_bucket else PAUSE
    self._next = time.monotonic() + pause

  def news(self, since: int) -> dict[str, Any]:
    """Returns what has changed, ready for JSON; looks if the last look is old.

    Args:
      since: the `look` of the last answer; 0 for everything.

    Returns:
      `look`; `time` in seconds since 1970; the `names` of all runs; and `runs`,
      name -> the facts and curves of each run that has changed.
    """
    with self._lock:
      if time.monotonic() >= self._next:
        self.look()
      # A number beyond ours is that of an earlier server.
      since = since if since <= self._look else 0
      return {
        'look': self._look,
        'time': time.time(),
        'names': list(self._runs),
        'runs': {
          name: run.news
          for name, run in self._runs.items()
          if run.changed > since
        },
      }
