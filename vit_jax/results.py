"""What a work directory says of its run: how far it is, what was measured."""

import json
import math
from collections.abc import Mapping, Sequence

import ml_collections
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import evaluators, metrics

DONE = 'DONE'


def final_metrics(workdir: epath.PathLike) -> dict[str, float]:
  """All numbers of the last logged step of a run, evaluations included."""
  rows = metrics.read(workdir)
  result = {}
  for row in rows:
    if row['step'] == rows[-1]['step']:
      # One that was measured anew may lack numbers that it had.
      anew = {key.partition('/')[0] for key in row if '/' in key}
      result = {
        key: value
        for key, value in result.items()
        if key.partition('/')[0] not in anew
      } | row
  return result


def finished_at(workdir: epath.PathLike) -> int | None:
  """The step that the `DONE` file names; None if there is none."""
  path = epath.Path(workdir) / DONE
  # Empty if the process died, or the disk was full, just then.
  text = path.read_text().strip() if path.exists() else ''
  return int(text) if text.isdecimal() else None


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
    if evaluators.is_due(section, step)
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
