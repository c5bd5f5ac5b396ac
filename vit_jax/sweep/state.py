"""Keeps the state of a sweep on disk, so that a launcher may die at any time.

A run's own directory tells whether it has finished, and holds its metrics. Two
files hold the rest: SWEEPDIR/events.jsonl has a line for each start and end of
a run, and SWEEPDIR/sweep.json describes the runs.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from etils import epath

from vit_jax.runtime import json_text
from vit_jax.sweep import spec
from vit_jax.sweep.spec import HELD_OUT, Sweep
from vit_jax.workdir import files

_SWEEP = 'sweep.json'
# Exit codes after which a run restarts (see `errors`); so does a killed run.
RESTARTABLE = (75, 76, 77)


@dataclasses.dataclass
class Attempts:
  """Counts of a run's ends before it had finished, and its present handle.

  Attributes:
    failures: number of ends by an error of the run.
    restarts: number of ends with a restartable code or by a signal.
    handle: the launcher's handle; None if the run is not running.
  """

  failures: int = 0
  restarts: int = 0
  handle: str | None = None


class InUseError(ValueError):
  """Another process holds the directory."""


@contextlib.contextmanager
def lock(
  local: pathlib.Path,
  name: str = 'lock',
  *,
  holder: str = 'launcher',
  wait: float = 0.0,
) -> Iterator[None]:
  """Locks the directory; the kernel unlocks it when this process dies.

  Args:
    local: the directory.
    name: name of the lock file; each name is a separate lock.
    holder: what kind of process may hold the lock, for the error message.
    wait: seconds to wait for the lock.

  Raises:
    InUseError: another process holds the lock.
  """
  path = local / name
  end = time.monotonic() + wait
  with path.open('a+') as file:
    while not _locked(file):
      if time.monotonic() >= end:
        file.seek(0)
        raise InUseError(
          f'{local} is in use by another {holder} ({file.read().strip()}). Wait'
          ' for it, end it, or choose another --workdir.'
        )
      time.sleep(0.2)
    file.truncate(0)
    file.write(f'process {os.getpid()} on {os.uname().nodename}')
    file.flush()
    yield


def _locked(file: IO[str]) -> bool:
  """Locks a file; returns False if another process holds the lock."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


class Events:
  """Reads and appends the starts and ends of runs, in events.jsonl."""

  def __init__(self, local: pathlib.Path):
    """Reads the events of earlier launchers; ignores damaged lines."""
    self._path = local / 'events.jsonl'
    self.attempts = collections.defaultdict(Attempts)
    # Run name -> seconds from its last start to its successful end.
    self.seconds: dict[str, float] = {}
    self._started: dict[str, float] = {}
    exists = self._path.exists()
    text = self._path.read_bytes().decode(errors='replace') if exists else ''
    for line in text.splitlines():
      # A launcher that died may have left a damaged line.
      with contextlib.suppress(ValueError, KeyError, TypeError):
        self._take(json_text.loads(line))
    # The next event must begin on a new line.
    self._file = self._path.open('a')
    if text and not text.endswith('\n'):
      self._file.write('\n')

  def started(self, name: str, handle: str) -> None:
    """Records the start of a run."""
    self._note(run=name, handle=handle)

  def ended(self, name: str, code: int) -> None:
    """Records the exit code of a run; negative for a signal."""
    self._note(run=name, code=code)

  def over(self) -> None:
    """Records that the launcher is done; the next one retries failed runs."""
    self._note(over=True)

  def close(self) -> None:
    self._file.close()

  def _note(self, **event: Any) -> None:
    event['time'] = round(time.time(), 3)
    self._file.write(json.dumps(event) + '\n')
    self._file.flush()
    self._take(event)

  def _take(self, event: Mapping[str, Any]) -> None:
    if 'over' in event:
      self.attempts.clear()
      return
    name = event['run']
    attempts = self.attempts[name]
    if 'handle' in event:
      attempts.handle = event['handle']
      self._started[name] = event['time']
      return
    attempts.handle = None
    code = event['code']
    if code in RESTARTABLE or code < 0:
      attempts.restarts += 1
    elif code:
      attempts.failures += 1
    elif name in self._started:
      self.seconds[name] = event['time'] - self._started[name]


def final_metrics(workdir: epath.Path) -> dict[str, float] | None:
  """Returns the metrics of a finished run's last step; None if not finished.

  A run is finished once `DONE` names the last step of its config. `results`
  reads the same metrics, but imports JAX.
  """
  try:
    done = (workdir / 'DONE').read_text().strip()
    total = json_text.loads((workdir / 'config.json').read_text())[
      'total_steps'
    ]
    text = (workdir / 'metrics.jsonl').read_bytes().decode(errors='replace')
  except (FileNotFoundError, ValueError, TypeError, KeyError):
    return None  # A restarted run reports a damaged file itself.
  if done != str(total):
    return None
  final: dict[str, float] = {}
  for line in text.splitlines():
    with contextlib.suppress(ValueError):
      row = json_text.loads(line)
      if isinstance(row, dict) and row.get('step') == total:
        # A later row replaces all metrics of the evaluations that it contains.
        again = {key.partition('/')[0] for key in row if '/' in key}
        kept = {
          key: value
          for key, value in final.items()
          if key.partition('/')[0] not in again
        }
        final = kept | row
  return final


def held_out_accuracy(name: str, metrics: Mapping[str, float]) -> float:
  """Returns the accuracy by which candidates are compared.

  Args:
    name: the run's name.
    metrics: the metrics of its last step.

  Raises:
    ValueError: the accuracy is missing or not finite.
  """
  for key in HELD_OUT:
    value = metrics.get(f'{key}/accuracy', math.nan)
    if math.isfinite(value):
      return value
  raise ValueError(
    f'The candidate {name} has no finite accuracy on held-out data; found:'
    f' {", ".join(sorted(metrics)) or "nothing"}.'
  )


def record(
  local: pathlib.Path, sweep: Sweep, started: Callable[[str], bool]
) -> None:
  """Records the runs, so that no run resumes with different settings.

  Args:
    local: the sweep's directory.
    sweep: the sweep to run.
    started: returns whether the run of a name has a work directory.

  Raises:
    ValueError: a run was started with another config or other overrides.
  """
  path = local / _SWEEP
  runs = check_same_runs(local, sweep, started)
  found = {'studies': spec.to_json(sweep), 'runs': runs}
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(found, indent=2) + '\n')


def check_same_runs(
  local: pathlib.Path, sweep: Sweep, started: Callable[[str], bool]
) -> dict[str, dict[str, Any]]:
  """Checks that a directory's recorded runs have the settings of a sweep.

  The arguments are those of `record`.

  Returns:
    Run name -> config and overrides, of the recorded runs and of the sweep.

  Raises:
    ValueError: a run was started with another config or other overrides.
  """
  path = local / _SWEEP
  old = _read(path).get('runs', {}) if path.exists() else {}
  new = {}
  for study in sweep.studies:
    for run in study.all_runs():
      overrides = json.loads(json.dumps(dict(run.overrides)))
      new[run.name] = {'config': run.config, 'overrides': overrides}
  for name, what in new.items():
    if name in old and old[name] != what and started(name):
      raise ValueError(
        f'{local} holds the run {name} as {old[name]}, but now it is {what}.'
        ' Use another --workdir, or the same settings.'
      )
  return old | new


def recorded(local: pathlib.Path) -> Sweep:
  """Returns a directory's last started sweep, without its summary.

  Raises:
    ValueError: the directory holds no sweep.
  """
  path = local / _SWEEP
  if not path.exists():
    raise ValueError(f'{local} holds no sweep.')
  return spec.from_json(_read(path).get('studies', []))


def _read(path: pathlib.Path) -> dict[str, Any]:
  return files.read_object(path, 'restore it, or use another --workdir')
