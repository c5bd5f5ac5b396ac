"""What is known of a sweep on disk, so that a launcher may die at any time.

A run's own directory says whether it is finished and what it measured. Only
what it can't know is kept beside it: SWEEPDIR/events.jsonl has a line for each
start and end, SWEEPDIR/sweep.json what the runs are.
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
# Beside 75, 76 and 77 (see `errors`) a run that was killed is started again.
RESTARTABLE = (75, 76, 77)


@dataclasses.dataclass
class Attempts:
  """How often a run ended without being finished, and whether it is going on.

  Attributes:
    failures: by an error of its own.
    restarts: through no fault of its own.
    handle: what its launcher calls it; None if it has ended.
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
  """Holds the directory; the kernel lets go of it when this process dies.

  Args:
    local: the directory.
    name: of the file that is locked: each is a lock of its own.
    holder: what else may hold it, for the error.
    wait: seconds to wait for it.

  Raises:
    InUseError: another process holds it.
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
  """Locks a file, unless another process holds it."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


class Events:
  """The starts and ends of runs."""

  def __init__(self, local: pathlib.Path):
    """Reads what earlier launchers left; a line that is cut off is left out."""
    self._path = local / 'events.jsonl'
    self.attempts = collections.defaultdict(Attempts)
    # Run -> from its last start to a good end.
    self.seconds: dict[str, float] = {}
    self._started: dict[str, float] = {}
    exists = self._path.exists()
    text = self._path.read_bytes().decode(errors='replace') if exists else ''
    for line in text.splitlines():
      # Damaged, or of no event.
      with contextlib.suppress(ValueError, KeyError, TypeError):
        self._take(json_text.loads(line))
    # What follows must begin on a line of its own.
    self._file = self._path.open('a')
    if text and not text.endswith('\n'):
      self._file.write('\n')

  def started(self, name: str, handle: str) -> None:
    self._note(run=name, handle=handle)

  def ended(self, name: str, code: int) -> None:
    """Notes an exit code; negative is a signal."""
    self._note(run=name, code=code)

  def over(self) -> None:
    """Nothing is left to do: the next launcher tries what failed again."""
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
  """The numbers of a finished run's last step; None if it is not finished.

  As `results` reads them, without importing JAX: a run is finished once `DONE`
  names the step that its config ends at.
  """
  try:
    done = (workdir / 'DONE').read_text().strip()
    total = json_text.loads((workdir / 'config.json').read_text())[
      'total_steps'
    ]
    text = (workdir / 'metrics.jsonl').read_bytes().decode(errors='replace')
  except (FileNotFoundError, ValueError, TypeError, KeyError):
    return None  # A damaged one is named when the run is started again.
  if done != str(total):
    return None
  final: dict[str, float] = {}
  for line in text.splitlines():
    with contextlib.suppress(ValueError):
      row = json_text.loads(line)
      if isinstance(row, dict) and row.get('step') == total:
        # One that was measured anew may lack numbers that it had.
        anew = {key.partition('/')[0] for key in row if '/' in key}
        kept = {
          key: value
          for key, value in final.items()
          if key.partition('/')[0] not in anew
        }
        final = kept | row
  return final


def held_out_accuracy(name: str, metrics: Mapping[str, float]) -> float:
  """The one number that candidates are compared by.

  Args:
    name: the run's.
    metrics: of its last step.

  Raises:
    ValueError: it was not measured, or was not finite.
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
  """Notes what the runs are, so that none goes on as another one.

  Args:
    local: the sweep's directory.
    sweep: as it is to run.
    started: whether the run of a name has a work directory.

  Raises:
    ValueError: a run that was started had another config or overrides.
  """
  path = local / _SWEEP
  runs = check_same_runs(local, sweep, started)
  found = {'studies': spec.to_json(sweep), 'runs': runs}
  temporary = path.with_name(_SWEEP + '.tmp')
  temporary.write_text(json.dumps(found, indent=2) + '\n')
  temporary.replace(path)


def check_same_runs(
  local: pathlib.Path, sweep: Sweep, started: Callable[[str], bool]
) -> dict[str, dict[str, Any]]:
  """Checks that a directory's runs are those of a sweep.

  Args: those of `record`.

  Returns:
    Name -> config and overrides, of the runs that were noted and of the sweep.

  Raises:
    ValueError: a run that was started had another config or overrides.
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
        f'{local} holds the run {name} as {old[name]}, now it is {what}. Use'
        ' another --workdir, or the same settings.'
      )
  return old | new


def recorded(local: pathlib.Path) -> Sweep:
  """The sweep that was last started in a directory, without its summary.

  Raises:
    ValueError: there is none.
  """
  path = local / _SWEEP
  if not path.exists():
    raise ValueError(f'{local} holds no sweep.')
  return spec.from_json(_read(path).get('studies', []))


def _read(path: pathlib.Path) -> dict[str, Any]:
  return files.read_object(path, 'bring it back, or use another --workdir')
