"""Keeps the state of a sweep on disk, so that a launcher may die at any time.

A run's own directory tells whether it has finished, and holds its metrics. Two
files hold the rest: SWEEPDIR/running.json has the launcher's handle of each run
in progress, and SWEEPDIR/sweep.json names the sweep and describes the runs.
"""

import contextlib
import json
import math
import os
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import HELD_OUT, Sweep
from vit_jax.workdir import files, ownership

_RUNNING = 'running.json'
_SWEEP = 'sweep.json'
InUseError = ownership.InUseError


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
  message = f'{local} is in use by another {holder},'
  with ownership.locked(epath.Path(local / name), message, wait):
    yield


def handles(local: pathlib.Path) -> dict[str, str]:
  """Returns run name -> the launcher's handle, of the runs in progress."""
  return json.loads(files.content(epath.Path(local / _RUNNING)) or b'{}')


def note_handles(local: pathlib.Path, found: Mapping[str, str]) -> None:
  """Writes what `handles` reads."""
  files.write_json(local / _RUNNING, found)


def final_metrics(workdir: epath.Path) -> dict[str, float] | None:
  """Returns the metrics of a finished run's last step; None if not finished.

  A run is finished once `DONE` names the last step of its config.
  """
  try:
    done = results.finished_at(workdir)
    config = config_lib.load(workdir) if done is not None else None
  except ValueError:
    return None  # A restarted run reports a damaged file itself.
  if not config or done != config.get('total_steps'):
    return None
  return results.final_metrics(workdir)


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


def mean_and_std(runs: Sequence[Mapping[str, float]]) -> dict[str, str]:
  """Returns mean and standard deviation of accuracies over runs, in percent.

  The standard deviation is that of a sample (n - 1). A single run has none.
  """
  keys = {key for metrics in runs for key in metrics}
  result = {}
  for key in keys - {'train/accuracy'}:
    name, _, metric = key.rpartition('/')
    if metric != 'accuracy':
      continue
    values = [100 * metrics[key] for metrics in runs if key in metrics]
    result[name] = f'{statistics.fmean(values):.2f}'
    if len(values) > 1:
      result[name] += f' ± {statistics.stdev(values):.2f}'
  return result


def accuracies(metrics: Mapping[str, float]) -> str:
  """Returns the accuracy of each evaluation, such as `validation 93.10%`."""
  found = sorted(mean_and_std([metrics]).items())
  return ', '.join(f'{name} {text}%' for name, text in found)


def record(folders: Folders, file: str, sweep: Sweep) -> None:
  """Records a sweep, so that no run resumes with different settings.

  Args:
    folders: the sweep's folders.
    file: `PATH[:ARGUMENT]` of the sweep's file.
    sweep: the sweep to run.

  Raises:
    ValueError: a run was started with another config or other overrides.
  """
  # The argument may hold paths, such as gs://BUCKET/PATH.
  path, colon, argument = file.partition(':')
  found = {
    'sweep': f'{os.path.abspath(path)}{colon}{argument}',
    'shared': os.fspath(folders.shared),
    'runs': check_same_runs(folders, sweep),
  }
  files.write_json(folders.local / _SWEEP, found)


def check_same_runs(
  folders: Folders, sweep: Sweep
) -> dict[str, dict[str, Any]]:
  """Checks that a directory's recorded runs have the settings of a sweep.

  Args:
    folders: the sweep's folders.
    sweep: the sweep to run.

  Returns:
    Run name -> config and overrides, of the recorded runs and of the sweep.

  Raises:
    ValueError: a run was started with another config or other overrides.
  """
  old = _read(folders.local).get('runs', {})
  new = {}
  for study in sweep.studies:
    for run in study.all_runs():
      overrides = json.loads(json.dumps(dict(run.overrides)))
      new[run.name] = {'config': run.config, 'overrides': overrides}
  for name, what in new.items():
    changed = name in old and old[name] != what
    if changed and folders.workdir(name).exists():
      raise ValueError(
        f'{folders.local} holds the run {name} as {old[name]}, but now it is'
        f' {what}. Use another --workdir, or the same settings.'
      )
  return old | new


def recorded(local: pathlib.Path) -> tuple[str, Folders]:
  """Returns the sweep that was last started in a directory.

  Returns:
    `PATH[:ARGUMENT]` of its file, and its folders.

  Raises:
    ValueError: the directory does not name a sweep.
  """
  found = _read(local)
  if 'sweep' not in found:
    raise ValueError(
      f'{local} names no sweep. If one was started there with an older version,'
      ' start it again: finished runs stay.'
    )
  return found['sweep'], Folders(local, epath.Path(found['shared']))


def _read(local: pathlib.Path) -> dict[str, Any]:
  path = local / _SWEEP
  if not path.exists():
    return {}
  return files.read_object(path, 'restore it, or use another --workdir')
