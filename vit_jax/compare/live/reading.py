"""Follows the metrics of runs, however many rows they have.

Each read continues where the last one ended, and a curve keeps a bounded number
of points. So a run of a million rows costs little memory, and nothing again.
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.compare import frames
from vit_jax.runtime import goodput
from vit_jax.workdir import buckets, files, metrics, ownership

# The most points of a curve: about one per pixel.
POINTS = 600
# Seconds between looks at local files, and at those in a bucket, which are read
# as a whole each time.
PAUSE, PAUSE_OF_BUCKETS = 3.0, 30.0
# Without a lock to tell, a run that is silent for this long counts as stopped.
_SILENT = 900.0
_CHUNK = 2**20
# Measurements that are shown as facts, not as curves.
_NO_CURVE = ('step', 'unix_time', 'eta_sec')
_STEPS, _INPUT = goodput.key('steps'), goodput.key('input')


class Curve:
  """The values of a metric, of which neighbours are merged if they are many."""

  def __init__(self):
    # Each point: [last step, last hours, sum, lowest, highest, count].
    self._points: list[list[float]] = []
    self._count = 1  # How many values a full point holds.

  def add(self, step: float, hours: float, value: float) -> None:
    points = self._points
    if points and points[-1][5] < self._count:
      last = points[-1]
      last[0], last[1] = step, hours
      last[2] += value
      if value < last[3]:
        last[3] = value
      if value > last[4]:
        last[4] = value
      last[5] += 1
      return
    points.append([step, hours, value, value, value, 1])
    if len(points) > POINTS:
      self._count *= 2
      pairs = zip(points[:-1:2], points[1::2], strict=False)
      rest = points[len(points) // 2 * 2 :]
      self._points = [_merged(*pair) for pair in pairs] + rest

  def columns(self) -> dict[str, list[float]]:
    """Returns the points as columns, with five significant digits.

    Returns:
      `step`, `hours` and `mean`; if values were merged, also their `low` and
      `high`.
    """
    steps, hours, sums, low, high, counts = zip(*self._points, strict=True)
    means = (total / n for total, n in zip(sums, counts, strict=True))
    found = {'step': list(steps), 'hours': _rounded(hours)}
    found['mean'] = _rounded(means)
    if self._count > 1:
      found |= {'low': _rounded(low), 'high': _rounded(high)}
    return found


def _merged(first: Sequence[float], second: Sequence[float]) -> list[float]:
  return [
    *(second[0], second[1], first[2] + second[2]),
    *(min(first[3], second[3]), max(first[4], second[4])),
    first[5] + second[5],
  ]


def _rounded(values) -> list[float]:
  return [float(f'{value:.5g}') for value in values]


class WatchedRun:
  """What a run has written so far."""

  def __init__(self, name: str, workdir: epath.Path):
    """Reads nothing yet.

    Args:
      name: the name to show.
      workdir: the run's work directory.
    """
    self.name, self.workdir = name, workdir
    self.in_bucket = buckets.is_store(workdir)
    self._begin()

  def _begin(self) -> None:
    self.curves: dict[str, Curve] = {}
    self.latest: dict[str, float] = {}
    self._hours = 0.0
    self._offset = 0
    self._tail = b''  # The last line that was read, to know the file again.

  def rows(self) -> Iterator[list[dict[str, float]]]:
    """Yields the rows since the last call, in portions; skips damaged lines.

    Begins again if a resumed run has removed rows.
    """
    rest = b''
    for chunk in self._chunks():
      if chunk is None:
        self._begin()
        rest = b''
        continue
      *lines, rest = (rest + chunk).split(b'\n')
      if not lines:
        continue
      self._offset += sum(len(line) + 1 for line in lines)
      self._tail = lines[-1] + b'\n'
      yield [row for line in lines if (row := _parsed(line))]

  def _chunks(self) -> Iterator[bytes | None]:
    """Yields the new bytes; first None if the old ones have changed."""
    path = self.workdir / metrics.FILE
    before = self._offset - len(self._tail)
    if self.in_bucket:
      content = files.content(path)
      if content[before : self._offset] != self._tail:
        yield None
      yield content[self._offset :]
      return
    try:
      file = path.open('rb')
    except FileNotFoundError:
      if self._offset:
        yield None
      return
    with file:
      file.seek(before)
      if file.read(len(self._tail)) != self._tail:
        yield None
        file.seek(0)
      while chunk := file.read(_CHUNK):
        yield chunk

  def add(self, rows: Sequence[dict[str, float]]) -> None:
    """Adds rows to the curves."""
    for row in rows:
      # JSON has no infinite numbers, but Python reads them.
      # A whole number may be too large for a float.
      row = {k: v for k, v in row.items() if abs(v) < math.inf}
      if _STEPS in row and _INPUT in row:
        self._hours = (row[_STEPS] + row[_INPUT]) / 3600
      step, hours = row['step'], self._hours
      self.latest |= row
      for key, value in row.items():
        curve = self.curves.get(key)
        if curve is None:
          if key in _NO_CURVE or key.endswith('_seconds'):
            continue
          curve = self.curves[key] = Curve()
        curve.add(step, hours, value)

  def facts(self) -> dict[str, Any]:
    """Returns the run's state and latest numbers."""
    heard = self.latest.get('unix_time')
    done = results.finished_at(self.workdir)
    total = (config_lib.load(self.workdir) or {}).get('total_steps')
    if done is not None:
      state = 'finished'
    else:
      held = None if self.in_bucket else ownership.is_held(self.workdir)
      if held is None:
        held = heard is not None and time.time() - heard < _SILENT
      state = 'running' if held else 'stopped'
    return {
      'name': self.name,
      'state': state,
      'heard': heard,
      'total': total if isinstance(total, int) else None,
      'latest': self.latest.copy(),
    }


def _parsed(line: bytes) -> dict[str, float] | None:
  try:
    return metrics.parse(line)
  except ValueError:
    return None


class Watcher:
  """Follows all runs in some folders, in a thread of its own."""

  def __init__(self, folders: Sequence[epath.PathLike]):
    """Finds the runs.

    Raises:
      ValueError: see `frames.find`.
    """
    self._folders = folders
    self._lock = threading.Lock()
    self._runs: dict[str, WatchedRun] = {}
    self._facts: dict[str, dict] = {}
    # Run -> when it last changed, counted by looks.
    self._changed: dict[str, int] = {}
    self._look = 0
    # Run -> when a read began, and when one ended without an error.
    self._tried: dict[str, float] = {}
    self._read: dict[str, float] = {}
    self._failed: set[str] = set()
    self._find()

  def start(self) -> None:
    """Starts the thread, which ends with the process."""
    threading.Thread(target=self._follow, daemon=True).start()

  def _follow(self) -> None:
    while True:
      self.look()
      time.sleep(PAUSE)

  def _find(self) -> None:
    found = frames.find(*self._folders)
    with self._lock:
      self._runs = {
        name: self._runs.get(name) or WatchedRun(name, workdir)
        for name, workdir in found.items()
      }
      # A run that comes back is news again.
      for known in (self._facts, self._changed, self._tried, self._read):
        for name in known.keys() - found.keys():
          del known[name]

  def look(self) -> None:
    """Reads what is new in all runs, and looks for new runs.

    A file system may be slow: nothing is read while the lock is held.
    """
    # If a folder is gone for now, the page keeps what it has.
    with contextlib.suppress(OSError, ValueError):
      self._find()
    for name, run in self._runs.items():
      now = time.monotonic()
      pause = PAUSE_OF_BUCKETS if run.in_bucket else 0.0
      if now - self._tried.get(name, -math.inf) < pause:
        continue
      self._tried[name] = now
      try:
        # The state may change without a new row.
        for rows in itertools.chain(run.rows(), [[]]):
          with self._lock:
            run.add(rows)
          self._note(name, run.facts())
        with self._lock:
          self._read[name] = time.monotonic()
      except Exception as error:  # Each object store has its own errors.
        if name not in self._failed:
          self._failed.add(name)
          logging.warning('%s cannot be read: %s', run.workdir, error)

  def _note(self, name: str, facts: dict) -> None:
    with self._lock:
      if facts != self._facts.get(name):
        self._look += 1
        self._facts[name], self._changed[name] = facts, self._look

  def news(self, since: int) -> dict[str, Any]:
    """Returns what has changed, ready for JSON.

    Args:
      since: the `look` of the last answer; 0 for everything.

    Returns:
      `look`; `time` in seconds since 1970; the `names` of all runs; `unread`,
      name -> seconds since the run was last read, if it has been; and `runs`,
      name -> the facts and curves of each run that has changed.
    """
    with self._lock:
      # A number beyond ours is that of an earlier server.
      since = since if since <= self._look else 0
      return {
        'look': self._look,
        'time': time.time(),
        'names': list(self._runs),
        'unread': {
          name: round(time.monotonic() - at) for name, at in self._read.items()
        },
        'runs': {
          name: self._facts[name]
          | {'curves': {k: c.columns() for k, c in run.curves.items()}}
          for name, run in self._runs.items()
          if self._changed.get(name, 0) > since
        },
      }
