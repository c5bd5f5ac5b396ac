"""What a work directory says of its run: how far it is, what was measured."""

import json
import math
from collections.abc import Mapping, Sequence

import ml_collections
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.workdir import metrics
from vit_jax.workdir.buckets import growing

DONE = 'DONE'


def final_metrics(workdir: epath.PathLike) -> dict[str, float]:
  """All numbers of the last logged step of a run, evaluations included."""
  rows = metrics.read(workdir)
  return _by_step(rows)[rows[-1]['step']] if rows else {}


def best_row(workdir: epath.PathLike, metric: str) -> dict[str, float]:
  """All numbers of the step at which a metric was best: early stopping.

  So `best_row(workdir, 'validation/accuracy')['few_shot/5shot/accuracy']` is
  the few-shot accuracy of the weights in `WORKDIR/best`, if both evaluations
  were due at the same steps. Of equal values the first counts, as in
  `checkpoint.best`.

  Args:
    workdir: of a run, finished or not.
    metric: such as `validation/accuracy`, or `validation/loss`, which is best
      where it is lowest.

  Raises:
    ValueError: the run has no finite value of it; lists what it has.
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
  """The numbers of each step in one row, those measured anew the newest."""
  steps = {}
  for row in rows:
    # One that was measured anew may lack numbers that it had.
    anew = {key.partition('/')[0] for key in row if '/' in key}
    steps[row['step']] = {
      key: value
      for key, value in steps.get(row['step'], {}).items()
      if key.partition('/')[0] not in anew
    } | row
  return steps


def finished_at(workdir: epath.PathLike) -> int | None:
  """The step that the `DONE` file names; None if there is none."""
  path = epath.Path(workdir) / DONE
  if not path.exists():
    return None
  text = path.read_bytes().strip()
  if text.isdigit():
    return int(text)
  if text:  # Empty if the process died, or the disk was full, just then.
    logging.warning(
      '%s holds %r, no step: the end of the run is made again.', path, text[:40]
    )
  return None


def check_not_lost(workdir: epath.PathLike) -> None:
  """Refuses a work directory whose run has saved, and has no checkpoint now.

  Raises:
    ValueError: says how far the run was, and what to do.
  """
  saved = (config_lib.load(workdir) or {}).get('checkpoint', {})
  rows = metrics.read(workdir)
  at = max((row['step'] for row in rows), default=0)
  times = [row['unix_time'] for row in rows if 'unix_time' in row]
  minutes = (max(times) - min(times)) / 60 if times else 0.0
  # The numbers of a step come before its save, and those of later steps may
  # until the next one; past that, the first was complete.
  if (
    at > 2 * saved.get('every', math.inf)
    or minutes > 2 * (saved.get('every_minutes') or math.inf)
    or finished_at(workdir)
  ):
    raise ValueError(
      f'{workdir} has no checkpoint, and its {metrics.FILE} goes to step {at}:'
      f' what was in {checkpoint_lib.FOLDER}/ is gone. Bring it back, use'
      ' another --workdir, or pass --restart to begin anew; the old numbers are'
      ' kept.'
    )


def set_aside(workdir: epath.PathLike) -> None:
  """Keeps numbers and weights under other names, as a run begins anew."""
  workdir, number = epath.Path(workdir), 1
  growing.merge(workdir / metrics.FILE)
  while (workdir / f'metrics_{number}.jsonl').exists():
    number += 1
  for name in (metrics.FILE, checkpoint_lib.BEST, checkpoint_lib.FINAL):
    path = workdir / name
    if path.exists():
      target = path.with_name(f'{path.stem}_{number}{path.suffix}')
      path.rename(target)
      logging.warning('%s is now %s: the run begins anew.', path, target.name)


def missing_evaluations(
  config: ml_collections.ConfigDict, workdir: epath.PathLike
) -> list[str]:
  """The evaluations that have no result at the last step, as they are now."""
  final = final_metrics(workdir)
  saved = (config_lib.load(workdir) or {}).get('evals', {})
  return [
    name
    for name, section in config.evals.items()
    if final.get('step') != config.total_steps
    or not _has(final, name)
    or saved.get(name) != json.loads(json.dumps(section.to_dict()))
  ]


def unevaluated(
  config: ml_collections.ConfigDict,
  rows: Sequence[Mapping[str, float]],
  step: int,
) -> list[str]:
  """The evaluations that were due at a step and have no result there."""
  if not step:
    return []
  at_step = [row for row in rows if row['step'] == step]
  return [
    name
    for name, section in config.evals.items()
    if config_lib.is_due(section, step)
    and not any(_has(row, name) for row in at_step)
  ]


def _has(row: Mapping[str, float], evaluation: str) -> bool:
  """Whether a row holds an evaluation's numbers, which are written together."""
  return any(key.startswith(f'{evaluation}/') for key in row)


def best_value(
  metric: str, rows: Sequence[Mapping[str, float]]
) -> float | None:
  """The best value of a metric among the rows; None if there is none."""
  best = None
  for row in rows:
    value = row.get(metric, math.nan)
    if math.isfinite(value) and (
      best is None or checkpoint_lib.is_better(metric, value, best)
    ):
      best = value
  return best
