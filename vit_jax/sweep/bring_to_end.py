"""Runs a sweep until all its runs have ended.

The process may die at any time, because it reads its whole state from disk when
it starts again.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from vit_jax.runtime import errors, logs
from vit_jax.sweep import schedule, state, status
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Sweep

_PAUSE = 60.0  # Maximum seconds before a run that ended badly is tried again.
_PATIENCE = 600.0  # Seconds for runs to save when the launcher stops.
_REFRESH = 2.0  # Seconds between updates of the view.
# Config keys that change a run's numbers, but not its compiled programs.
_OWN = ('seed', 'init.checkpoint')


class Launcher(Protocol):
  """Starts and stops runs on some machines.

  Attributes:
    slots: the number of runs at a time.
    interval: seconds between polls.
    survives: whether runs continue when this process dies.
  """

  slots: int
  interval: float
  survives: bool

  def start(self, run: Run) -> str:
    """Starts a run; returns a handle, which is kept on disk."""

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None during the run."""

  def stop(self, handle: str) -> None:
    """Asks a run to save and to end."""


class Launch:
  """A sweep in progress."""

  def __init__(
    self,
    sweep: Sweep,
    folders: Folders,
    launcher: Launcher,
    limits: schedule.Limits,
    view: status.View,
    steps: Mapping[str, int],
  ):
    """Reads the state of the sweep from disk; the caller must hold the lock.

    Args:
      sweep: the sweep.
      folders: the sweep's folders.
      launcher: starts the runs.
      limits: how often a run is started again.
      view: shows the progress.
      steps: run name -> its number of steps, if known, for the time estimate.
    """
    self._sweep = sweep
    self._folders = folders
    self._launcher = launcher
    self._limits = limits
    self._view = view
    self._steps = steps
    self._events = state.Events(folders.local)
    self.finished = read_finished(sweep, folders)
    self._programs = {
      run.name: _program(run)
      for study in sweep.studies
      for run in study.all_runs()
    }
    self._not_before: dict[str, float] = {}
    # Runs that outlived an earlier launcher are still running.
    self._busy = {
      name: attempts.handle
      for name, attempts in self._events.attempts.items()
      if attempts.handle is not None and launcher.survives
    }

  def run(self, stopped: Callable[[], bool] = lambda: False) -> list[str]:
    """Runs all due runs, and those that become due after them.

    Args:
      stopped: returns whether to stop the runs and to end.

    Returns:
      The names of the runs that failed too often.

    Raises:
      PreemptedError: `stopped` returned True; the state is on disk.
      ValueError: a finished candidate has no accuracy on held-out data.
    """
    shown = 0.0
    try:
      while not stopped():
        changed = self._collect()
        failed = self._failed()
        waiting = [
          run
          for run in schedule.due(self._sweep, self.finished)
          if run.name not in self._busy and run.name not in failed
        ]
        changed |= self._start(waiting)
        if changed or time.monotonic() > shown + _REFRESH:
          self._view.show(self._snapshot(failed))
          shown = time.monotonic()
        if not self._busy and not waiting:
          self._events.over()
          return failed
        _sleep(self._launcher.interval, stopped)
    finally:
      # If this process fails, surviving runs continue; the next one finds them.
      if stopped() or not self._launcher.survives:
        self._stop()
      self._events.close()
    raise errors.PreemptedError(
      f'stopped with {len(self.finished)} runs finished. Start the same command'
      ' again to go on.'
    )

  def _collect(self) -> bool:
    """Records the runs that have ended; returns whether there were any."""
    changed = False
    for name, handle in list(self._busy.items()):
      code = self._launcher.poll(handle)
      if code is None:
        continue
      changed = True
      del self._busy[name]
      metrics = state.final_metrics(self._folders.workdir(name))
      if metrics is not None:
        self.finished[name], code = metrics, 0
      elif code == 0:
        code = 1  # The run ended with 0, but left no final metrics.
      self._events.ended(name, code)
      if code:
        attempts = self._events.attempts[name]
        tries = attempts.failures + attempts.restarts
        self._not_before[name] = time.monotonic() + min(_PAUSE, 2.0**tries / 2)
      self._view.say(self._ended(name, code))
    return changed

  def _ended(self, name: str, code: int) -> str:
    if not code:
      return f'{name} finished: {status.accuracies(self.finished[name])}'
    what = f'signal {-code}' if code < 0 else f'exit code {code}'
    again = not self._limits.gave_up(self._events.attempts[name])
    return (
      f'{name} ended with {what}, see {self._folders.log(name)};'
      f' {"it is tried again" if again else "given up"}'
    )

  def _start(self, waiting: list[Run]) -> bool:
    """Fills the free slots; returns whether anything was started."""
    changed = False
    now = time.monotonic()
    waiting = [
      run for run in waiting if now >= self._not_before.get(run.name, 0.0)
    ]
    while waiting and len(self._busy) < self._launcher.slots:
      busy = {self._programs.get(name) for name in self._busy}
      others = (r for r in waiting if self._programs[r.name] not in busy)
      run = next(others, waiting[0])
      waiting.remove(run)
      handle = self._launcher.start(run)
      self._events.started(run.name, handle)
      self._busy[run.name] = handle
      self._view.say(f'{run.name} started')
      changed = True
    return changed

  def _failed(self) -> list[str]:
    return [
      name
      for name, attempts in self._events.attempts.items()
      if name not in self.finished and self._limits.gave_up(attempts)
    ]

  def _snapshot(self, failed: list[str]) -> status.Snapshot:
    return status.snapshot(
      self._sweep,
      self._folders,
      finished=self.finished,
      busy=list(self._busy),
      failed=failed,
      seconds=self._events.seconds,
      slots=self._launcher.slots,
      steps=self._steps,
    )

  def _stop(self) -> None:
    """Stops all runs, and waits until they have saved."""
    for handle in self._busy.values():
      self._launcher.stop(handle)
    end = time.monotonic() + _PATIENCE
    while self._busy and time.monotonic() < end:
      self._collect()
      if self._busy:
        time.sleep(self._launcher.interval)
    if self._busy:
      self._view.say(
        f'These runs did not end in {_PATIENCE:.0f} s: {sorted(self._busy)}.'
      )


def _program(run: Run) -> str:
  """Returns a text that is equal for runs that compile the same programs.

  Two such runs at the same time would both compile. If they run one after the
  other, the second finds the programs in the sweep's cache.
  """
  own = {k: v for k, v in run.overrides.items() if k not in _OWN}
  return json.dumps([run.config, own], sort_keys=True)


def read_finished(
  sweep: Sweep, folders: Folders
) -> dict[str, dict[str, float]]:
  """Returns run name -> final metrics, of all runs that may be in the sweep."""
  finished = {}
  for study in sweep.studies:
    for run in study.all_runs():
      metrics = state.final_metrics(folders.workdir(run.name))
      if metrics is not None:
        finished[run.name] = metrics
  return finished


@contextlib.contextmanager
def signals() -> Iterator[Callable[[], bool]]:
  """Yields a function that returns whether SIGTERM, SIGHUP or Ctrl-C came.

  A second signal has its usual effect, which ends the process. A SIGHUP that
  the process ignores, as `nohup` makes it, does not count.
  """
  came = []

  def note(number, _):
    came.append(number)
    if number == signal.SIGHUP:
      logs.leave_closed_terminal()
    for each, handler in previous.items():
      signal.signal(each, handler)

  numbers = [signal.SIGTERM, signal.SIGINT]
  if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  previous = {number: signal.signal(number, note) for number in numbers}
  try:
    yield lambda: bool(came)
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _sleep(seconds: float, stopped: Callable[[], bool]) -> None:
  end = time.monotonic() + seconds
  while (left := end - time.monotonic()) > 0 and not stopped():
    time.sleep(min(left, 0.5))
