"""The table of runs on a terminal."""

from collections.abc import Sequence

import pandas as pd

from vit_jax import config as config_lib
from vit_jax.runtime import printable

_CONFIG = 'config.'
# Keys that rarely explain a difference in results: the table leaves them out.
_UNINTERESTING = (*config_lib.FREE_KEYS, 'data.num_examples', 'data.max_pixels')
# Columns of `frames.load_runs` that identify the run and its progress; they are
# not metrics.
_NOT_METRICS = ('run', 'finished', 'step')
_LONGEST = 30  # Characters of a config value.


def choose(runs: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
  """Returns the metrics to show.

  Args:
    runs: see `frames.load_runs`.
    metrics: names that the user gives; [] stands for all accuracies but those
      of training batches.

  Raises:
    ValueError: a name in `metrics` is not a metric of any run.
  """
  known = [
    c for c in runs if not c.startswith(_CONFIG) and c not in _NOT_METRICS
  ]
  if unknown := [name for name in metrics if name not in known]:
    raise ValueError(f'no run has {unknown}; choose from {known}.')
  return list(metrics) or [
    c for c in known if c.endswith('/accuracy') and not c.startswith('train/')
  ]


def render(runs: pd.DataFrame, metrics: Sequence[str], width: int) -> str:
  """Returns the table: the run, its progress, its metrics, what differs.

  Columns without room follow below the others.

  Args:
    runs: see `frames.load_runs`.
    metrics: columns of `runs`.
    width: characters in a line of the terminal.
  """
  cells = {'step': _steps(runs)} | {m: runs[m].map(_metric) for m in metrics}
  for column in runs:
    key = column.removeprefix(_CONFIG)
    if key == column or key.startswith(_UNINTERESTING):
      continue
    if runs[column].map(str).nunique() > 1:
      cells[key] = runs[column].map(_value)
  frame = pd.DataFrame(cells).set_index(runs['run'].rename(None))
  return printable.text(
    frame.to_string(line_width=width, max_colwidth=_LONGEST)
  )


def _metric(value: float) -> str:
  if pd.isna(value):
    return '-'
  return f'{value:.4f}' if abs(value) < 100 else f'{value:.6g}'


def _steps(runs: pd.DataFrame) -> list[str]:
  """Returns `500`, or `300/500` of a run that is not finished."""
  keys = ['finished', 'step', f'{_CONFIG}total_steps']
  texts = []
  for done, step, total in runs.reindex(columns=keys).itertuples(index=False):
    text = '0' if pd.isna(step) else f'{step:.0f}'
    if not done:
      text += f'/{"?" if pd.isna(total) else f"{total:.0f}"}'
    texts.append(text)
  return texts


def _value(value) -> str:
  if isinstance(value, float):
    return '-' if pd.isna(value) else f'{value:.6g}'
  return '-' if value in (None, '') else str(value)
