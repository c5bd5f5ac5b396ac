"""Runs a sweep until all its runs have ended.

The process may die at any time, because it reads its whole state from disk when
it starts again.
"""

import collections
import time
from collections.abc import Callable

from vit_jax.runtime import errors, printable
from vit_jax.sweep import schedule, state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Sweep

# Exit codes after which the same run would only end in the same way.
_FINAL = (1, 2, 130)
_PATIENCE = 600.0  # Seconds for runs to save when the launcher stops.


class Launch:
  """A sweep in progress.

  Attributes:
    finished: run name -> final metrics, of the finished runs.
    failed: the names of the runs that were given up.
  """

  def __init__(self, sweep: Sweep, folders: Folders, launcher, restarts: int):
    """Reads the state of the sweep from disk; the caller must hold the lock.

    Args:
      sweep: the sweep.
      folders: the sweep's folders.
      launcher: starts the runs; see `launchers`.
      restarts: maximum number of restarts of a run after it was preempted, lost
        a host, got stuck or was killed.
    """
    self._sweep = sweep
    self._folders = folders
    self._launcher = launcher
    self._restarts = restarts
    self.finished = read_finished(sweep, folders)
    self.failed: list[str] = []
    self._began, self._found = time.monotonic(), len(self.finished)
    self._tries = collections.Counter()
    # Runs that outlived an earlier launcher are still running.
    self._busy = state.handles(folders.local) if launcher.survives else {}

  def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
    """Runs all due runs, and those that become due after them.

    Args:
      stopped: returns whether to stop the runs and to end.

    Raises:
      PreemptedError: `stopped` returned True; the state is on disk.
      ValueError: a finished candidate has no accuracy on held-out data.
    """
    try:
      while not stopped():
        self._collect()
        waiting = [
          run
          for run in schedule.due(self._sweep, self.finished)
          if run.name not in self._busy and run.name not in self.failed
        ]
        if not self._busy and not waiting:
          return
        self._start(waiting)
        end = time.monotonic() + self._launcher.interval
        while (left := end - time.monotonic()) > 0 and not stopped():
          time.sleep(min(left, 0.5))
    finally:
      # If this process fails, surviving runs continue; the next one finds them.
      if stopped() or not self._launcher.survives:
        for handle in self._busy.values():
          self._launcher.stop(handle)
        end = time.monotonic() + _PATIENCE
        while self._busy and time.monotonic() < end:  # They save.
          time.sleep(self._launcher.interval)
          self._collect()
        for name in self._busy:
          self._say(f'{name} did not end in {_PATIENCE:.0f} s')
    raise errors.PreemptedError(
      f'stopped with {len(self.finished)} runs finished. Start the same command'
      ' again to go on.'
    )

  def _collect(self) -> None:
    """Records the runs that have ended."""
    for name, handle in list(self._busy.items()):
      code = self._launcher.poll(handle)
      if code is None:
        continue
      del self._busy[name]
      state.note_handles(self._folders.local, self._busy)
      metrics = state.final_metrics(self._folders.workdir(name))
      if metrics is not None:
        self.finished[name] = metrics
        self._say(f'{name} finished: {state.accuracies(metrics)}')
        continue
      code = code or 1  # It left no final metrics, so it has failed.
      self._tries[name] += 1
      if code in _FINAL or self._tries[name] > self._restarts:
        self.failed.append(name)
      what = f'signal {-code}' if code < 0 else f'exit code {code}'
      again = 'given up' if name in self.failed else 'it is tried again'
      log = self._folders.log(name)
      self._say(f'{name} ended with {what}, see {log}; {again}')

  def _start(self, waiting) -> None:
    """Fills the free slots."""
    for run in waiting[: max(0, self._launcher.slots - len(self._busy))]:
      self._busy[run.name] = self._launcher.start(run)
      state.note_handles(self._folders.local, self._busy)
      self._say(f'{run.name} started')

  def _say(self, text: str) -> None:
    """Prints an event, and how far the sweep is."""
    runs = schedule.expected(self._sweep, self.finished)
    done = len(runs.keys() & self.finished.keys())
    far = f'{done} of {len(runs)} done, {len(self._busy)} running'
    made = len(self.finished) - self._found
    if made and done < len(runs):
      # The runs that are left are taken to be like those that it has made, and
      # those that are running to be half done.
      half = len(self._busy) / 2
      pace = (time.monotonic() - self._began) / (made + half)
      far += (
        f', about {printable.duration(pace * (len(runs) - done - half))} left'
      )
    print(f'{time.strftime("%H:%M:%S")} {text}  [{far}]', flush=True)


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
