"""Reads a run's progress and measurements from its work directory."""

import json
import math
from collections.abc import Mapping, Sequence

import ml_collections
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.workdir import files, metrics, trackers

DONE = 'DONE'


def final_metrics(workdir: epath.PathLike) -> dict[str, float]:
  """Returns all numbers of a run's last logged step, evaluations included."""
  rows = metrics.read(workdir)
  return _by_step(rows)[rows[-1]['step']] if rows else {}


def best_row(workdir: epath.PathLike, metric: str) -> dict[str, float]:
  """Returns all numbers of the step at which a metric was best.

  This is early stopping. For example,
  `best_row(workdir, 'validation/accuracy')['few_shot/5shot/accuracy']` is the
  few-shot accuracy of the weights in `WORKDIR/best`, if both evaluations were
  due at the same steps. The first of equal values counts, as in
  `checkpoint.best`.

  Args:
    workdir: the work directory of a run, finished or not.
    metric: such as `validation/accuracy`, or `validation/loss`, which is best
      where it is lowest.

  Raises:
    ValueError: the run has no finite value of the metric. The message lists the
      metrics that the run has.
  """
  steps = _by_step(metrics.read(workdir))
  rows = [steps[step] for step in sorted(steps)]
  best = best_value(metric, rows)
  if best is None:
    found = sorted({key for row in rows for key in row} - {'step'})
    raise ValueError(
      f'{workdir} has no value of {metric!r} to choose a step by; it has'
      f' {found or "no metrics"}.'
    )
  return next(row for row in rows if row.get(metric) == best)


def _by_step(rows: Sequence[Mapping[str, float]]) -> dict[int, dict]:
  """Merges each step's rows; a repeated evaluation replaces its old numbers."""
  steps = {}
  for row in rows:
    # A repeated evaluation may lack numbers that it had before.
    repeated = {key.partition('/')[0] for key in row if '/' in key}
    steps[row['step']] = {
      key: value
      for key, value in steps.get(row['step'], {}).items()
      if key.partition('/')[0] not in repeated
    } | row
  return steps


def finished_at(workdir: epath.PathLike) -> int | None:
  """Returns the step in the `DONE` file; None if the run is not finished."""
  # The file is empty if the process died or the disk filled up at that moment.
  text = files.content(epath.Path(workdir) / DONE).strip()
  return int(text) if text.isdigit() else None


def check_not_lost(workdir: epath.PathLike) -> None:
  """Checks that a run without a checkpoint has not saved one before.

  Raises:
    ValueError: its metrics show that it has. The message says how far the run
      was, and what to do.
  """
  saved = (config_lib.load(workdir) or {}).get('checkpoint', {})
  rows = metrics.read(workdir)
  at = max((row['step'] for row in rows), default=0)
  times = [row['unix_time'] for row in rows if 'unix_time' in row]
  minutes = (max(times) - min(times)) / 60 if times else 0.0
  every = saved.get('every', math.inf)
  after = saved.get('every_minutes') or math.inf
  if every == config_lib.AUTO:
    # The first save begins at the first row, and fails after this time.
    every, after = math.inf, min(after, saved['timeout'] / 60)
  # A run logs a step before it saves that step, and logs later steps while it
  # saves. After two intervals the first save must be complete.
  if at > 2 * every or minutes > 2 * after or finished_at(workdir):
    raise ValueError(
      f'{workdir} has no checkpoint, but its {metrics.FILE} goes to step {at}:'
      f' what was in {checkpoint_lib.FOLDER}/ is gone. Restore it, use another'
      ' --workdir, or pass --restart to start over; the old numbers are kept.'
    )


def set_aside(workdir: epath.PathLike) -> None:
  """Renames a run's numbers and weights, so that the run can start over."""
  workdir, number = epath.Path(workdir), 1
  while (workdir / f'metrics_{number}.jsonl').exists():
    number += 1
  for name in (
    *(metrics.FILE, trackers.FILE),
    *(checkpoint_lib.BEST, checkpoint_lib.FINAL),
  ):
    path = workdir / name
    if path.exists():
      target = path.with_name(f'{path.stem}_{number}{path.suffix}')
      path.rename(target)
      logging.warning('%s is now %s: the run starts over.', path, target.name)


def missing_evaluations(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> list[str]:
  """Returns the evaluations without a result at the last step.

  A result with other settings than those in `config` does not count. Nor does
  a result without predictions if they are now to be saved.
  """
  left = unevaluated(config, metrics.read(workdir), config.total_steps)
  saved = (config_lib.load(workdir) or {}).get('evals', {})
  # As in the file: lists instead of tuples.
  for name, new in json.loads(json.dumps(config.evals.to_dict())).items():
    old = saved.get(name, {})
    # Predictions that are not asked for do no harm.
    asked, had = (one.pop('save_predictions', False) for one in (new, old))
    if name not in left and (new != old or asked > had):
      left.append(name)
  return [name for name in config.evals if name in left]


def unevaluated(
  config: ml_collections.ConfigDict,
  rows: Sequence[Mapping[str, float]],
  step: int,
) -> list[str]:
  """Returns the evaluations that were due at a step but have no result.

  At the last step, all are due.
  """
  # The numbers of an evaluation are written together.
  found = {
    key.partition('/')[0]
    for row in rows
    if row['step'] == step
    for key in row
    if '/' in key
  }
  return [name for name in config_lib.due(config, step) if name not in found]


def best_value(
  metric: str, rows: Sequence[Mapping[str, float]]
) -> float | None:
  """Returns the best finite value of a metric in the rows; None without one."""
  values = [
    row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))
  ]
  lower = bool(values) and checkpoint_lib.is_better(metric, 0.0, 1.0)
  return min(values, default=None) if lower else max(values, default=None)
