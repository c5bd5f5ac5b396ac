"""Shows the progress of a sweep: as a live table, or as a line per change."""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Collection, Mapping, Sequence

from vit_jax.runtime import json_text
from vit_jax.sweep import schedule
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep

_TAIL = 4096  # Bytes at the end of a file that contain its last line.


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """The progress of a sweep.

  Attributes:
    rows: (run, state, progress) of each known run.
    done: number of finished runs.
    total: number of all runs.
    running: number of runs that run now.
    failed: number of runs that were given up.
    seconds_left: estimated seconds to the end; None before a run has finished.
  """

  rows: Sequence[tuple[str, str, str]]
  done: int
  total: int
  running: int
  failed: int
  seconds_left: float | None

  def summary(self) -> str:
    parts = [f'{self.done} of {self.total} done', f'{self.running} running']
    if self.failed:
      parts.append(f'{self.failed} failed')
    if self.seconds_left is not None and self.done < self.total:
      parts.append(f'about {duration(self.seconds_left)} left')
    return ', '.join(parts)


def snapshot(
  sweep: Sweep,
  folders: Folders,
  *,
  finished: schedule.Finished,
  busy: Sequence[str],
  failed: Sequence[str],
  seconds: Mapping[str, float],
  slots: int,
  steps: Mapping[str, int],
) -> Snapshot:
  """Collects the progress of a sweep.

  Args:
    sweep: the sweep.
    folders: the sweep's folders.
    finished: run name -> final metrics.
    busy: names of the runs that run now.
    failed: names of the runs that were given up.
    seconds: run name -> duration of the finished run.
    slots: number of runs at a time.
    steps: run name -> its number of steps; 0 or missing: not known.
  """
  rows = {}
  for study in sweep.studies:
    for run in schedule.known(study, finished):
      name = run.name
      if name in finished:
        rows[name] = ('finished', accuracies(finished[name]))
      elif name in busy:
        rows[name] = ('running', _progress(folders, name))
      else:
        rows[name] = ('failed' if name in failed else 'waiting', '')
  runs = schedule.expected(sweep, finished)
  done = sum(state == 'finished' for state, _ in rows.values())
  left = None
  if any(name in seconds for name in runs):
    ahead = runs.keys() - finished.keys() - set(failed)
    left = _seconds(runs, ahead, seconds, steps) / min(slots, len(runs))
  return Snapshot(
    rows=[(name, *row) for name, row in rows.items()],
    done=done,
    total=len(runs),
    running=len(busy),
    failed=len(failed),
    seconds_left=left,
  )


def _seconds(
  runs: Mapping[str, Run],
  ahead: Collection[str],
  seconds: Mapping[str, float],
  steps: Mapping[str, int],
) -> float:
  """Estimates the seconds that some runs will take, one after the other.

  The estimate is a start-up time plus a time per step, both fitted to finished
  runs. Runs that start from other runs' weights are one kind, all others are
  another; each kind uses its own finished runs, once there are any. If the
  number of steps of any run of a kind is not known, each run of this kind is
  estimated to take the mean time.

  Args:
    runs: all runs of the sweep.
    ahead: the names of the runs to estimate.
    seconds: run name -> duration of the finished run.
    steps: run name -> its number of steps; 0 or missing: not known.
  """
  done = runs.keys() & seconds.keys()
  total = 0.0
  for later in (False, True):
    kind = {name for name, run in runs.items() if bool(run.needs) is later}
    wanted, measured = kind & ahead, sorted(kind & done or done)
    size = {name: steps.get(name, 0) for name in (*wanted, *measured)}
    if not all(size.values()):
      size = dict.fromkeys(size, 1)
    start, per_step = _line(
      [size[name] for name in measured], [seconds[name] for name in measured]
    )
    total += sum(start + per_step * size[name] for name in wanted)
  return total


def _line(
  steps: Sequence[int], seconds: Sequence[float]
) -> tuple[float, float]:
  """Fits seconds per start-up and per step, both at least 0."""
  if len(set(steps)) > 1:
    line = statistics.linear_regression(steps, seconds)
    if line.slope <= 0:
      return statistics.fmean(seconds), 0.0
    if line.intercept >= 0:
      return line.intercept, line.slope
  return 0.0, sum(seconds) / sum(steps)


def accuracies(metrics: Mapping[str, float]) -> str:
  """Returns the accuracy of each evaluation, such as `validation 93.10%`."""
  return ', '.join(
    f'{key.removesuffix("/accuracy")} {100 * value:.2f}%'
    for key, value in sorted(metrics.items())
    if key.endswith('/accuracy') and not key.startswith('train/')
  )


def duration(seconds: float) -> str:
  """Returns a text such as `2 h 5 min`, `3 min` or `40 s`."""
  minutes = round(seconds / 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60} min'
  return f'{minutes} min' if seconds >= 60 else f'{seconds:.0f} s'


def _progress(folders: Folders, name: str) -> str:
  """Returns the last logged step, such as `step 120`; '' if it is not known."""
  path = folders.workdir(name) / 'metrics.jsonl'
  if '://' in str(path):
    return ''  # Progress is not worth a request every few seconds.
  with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
    with open(path, 'rb') as file:
      file.seek(0, 2)
      file.seek(max(file.tell() - _TAIL, 0))
      line = file.read().decode().splitlines()[-1]
    return f'step {json_text.loads(line)["step"]:,}'
  return ''


class View:
  """A view that shows nothing."""

  def say(self, text: str) -> None:
    """Reports one event."""

  def show(self, snapshot: Snapshot) -> None:
    """Shows the progress."""

  def close(self) -> None:
    """Ends the view; the last state remains on the screen."""


class Lines(View):
  """Prints a line for each event, for logs."""

  def __init__(self):
    self._lines: list[str] = []

  def say(self, text):
    self._lines.append(f'{time.strftime("%H:%M:%S")} {text}')

  def show(self, snapshot):
    if self._lines:
      self._lines[-1] += f'  [{snapshot.summary()}]'
      print('\n'.join(self._lines), flush=True)
      self._lines.clear()

  def close(self):
    if self._lines:
      print('\n'.join(self._lines), flush=True)


class Live(View):
  """Shows a live table, with the runs that ended badly above it."""

  def __init__(self, console=None):
    """Starts the table on the screen, or on a `rich.console.Console`."""
    import rich.live

    self._live = rich.live.Live(console=console, auto_refresh=False)
    self._live.start()

  def say(self, text):
    if ' ended with ' in text:
      self._live.console.print(text, markup=False, highlight=False)

  def show(self, snapshot):
    import rich.table

    table = rich.table.Table(caption=snapshot.summary())
    for column in ('run', 'state', 'how far'):
      table.add_column(column)
    # The screen may have too few lines, so running and failed runs come first.
    order = {'running': 0, 'failed': 1, 'finished': 2, 'waiting': 3}
    rows = sorted(snapshot.rows, key=lambda row: order[row[1]])
    room = max(self._live.console.size.height - 7, 5)
    for row in rows[:room]:
      table.add_row(*row)
    if len(rows) > room:
      table.add_row(f'... and {len(rows) - room} more', '', '')
    self._live.update(table, refresh=True)

  def close(self):
    self._live.stop()


def view() -> View:
  """Returns the live table on a terminal with `rich` installed, else lines."""
  if sys.stdout.isatty():
    with contextlib.suppress(ImportError):
      return Live()
  return Lines()
