"""What is shown while a sweep runs: a live table, or a line for each change."""

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

_TAIL = 4096  # Bytes of a file that hold its last line.


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """How far a sweep is.

  Attributes:
    rows: (run, what it does, how far it is) of each run that is known.
    done: how many runs are finished.
    total: how many there are to be.
    running: how many run now.
    failed: how many were given up.
    seconds_left: an estimate; None before the first run has ended.
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
  """Puts together what is known.

  Args:
    sweep: what runs.
    folders: where.
    finished: metrics by run.
    busy: the runs that are going on.
    failed: the runs that were given up.
    seconds: what finished runs took, by their names.
    slots: how many run at a time.
    steps: of runs, by their names; 0 or left out: not known.
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
  """What some runs will take, one after the other.

  A start, and as long a step, as those that are finished have. Runs that start
  from others' weights are of another kind than those: each kind is judged by
  itself, as soon as one is finished. A kind with a run whose steps are not
  known counts runs instead: each takes the mean.

  Args:
    runs: all of the sweep.
    ahead: the names of those that are asked for.
    seconds: what finished ones took.
    steps: of runs.
  """
  done = runs.keys() & seconds.keys()
  total = 0.0
  for later in (False, True):
    kind = {name for name, run in runs.items() if bool(run.needs) is later}
    asked, judges = kind & ahead, sorted(kind & done or done)
    size = {name: steps.get(name, 0) for name in (*asked, *judges)}
    if not all(size.values()):
      size = dict.fromkeys(size, 1)
    start, a_step = _line(
      [size[name] for name in judges], [seconds[name] for name in judges]
    )
    total += sum(start + a_step * size[name] for name in asked)
  return total


def _line(
  steps: Sequence[int], seconds: Sequence[float]
) -> tuple[float, float]:
  """Seconds of a start and of a step, neither below zero, by least squares."""
  if len(set(steps)) > 1:
    line = statistics.linear_regression(steps, seconds)
    if line.slope <= 0:
      return statistics.fmean(seconds), 0.0
    if line.intercept >= 0:
      return line.intercept, line.slope
  return 0.0, sum(seconds) / sum(steps)


def accuracies(metrics: Mapping[str, float]) -> str:
  """`validation 93.10%`, of each evaluation."""
  return ', '.join(
    f'{key.removesuffix("/accuracy")} {100 * value:.2f}%'
    for key, value in sorted(metrics.items())
    if key.endswith('/accuracy') and not key.startswith('train/')
  )


def duration(seconds: float) -> str:
  """`2 h 5 min`, `3 min` or `40 s`."""
  minutes = round(seconds / 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60} min'
  return f'{minutes} min' if seconds >= 60 else f'{seconds:.0f} s'


def _progress(folders: Folders, name: str) -> str:
  """`step 120`, as a run last logged; '' if it has not, or out of reach."""
  path = folders.workdir(name) / 'metrics.jsonl'
  if '://' in str(path):
    return ''  # Not worth a request every few seconds.
  with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
    with open(path, 'rb') as file:
      file.seek(0, 2)
      file.seek(max(file.tell() - _TAIL, 0))
      line = file.read().decode().splitlines()[-1]
    return f'step {json_text.loads(line)["step"]:,}'
  return ''


class View:
  """Shows nothing."""

  def say(self, text: str) -> None:
    """One thing happened."""

  def show(self, snapshot: Snapshot) -> None:
    """This is how things are."""

  def close(self) -> None:
    """Leaves the last state on the screen."""


class Lines(View):
  """A line for each change, for logs."""

  def __init__(self):
    self._said: list[str] = []

  def say(self, text):
    self._said.append(f'{time.strftime("%H:%M:%S")} {text}')

  def show(self, snapshot):
    if self._said:
      self._said[-1] += f'  [{snapshot.summary()}]'
      print('\n'.join(self._said), flush=True)
      self._said.clear()

  def close(self):
    if self._said:
      print('\n'.join(self._said), flush=True)


class Live(View):
  """A table that is drawn anew, with what went wrong above it."""

  def __init__(self, console=None):
    """Takes over the screen, or a `rich.console.Console`."""
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
    # A screen shows so many: what goes on first, then what ended last.
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
  """The live table on a terminal, if `rich` is installed; else lines."""
  if sys.stdout.isatty():
    with contextlib.suppress(ImportError):
      return Live()
  return Lines()
