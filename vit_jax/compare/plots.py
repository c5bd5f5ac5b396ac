"""Plots a metric of `frames` over steps, time, or a config key."""

from collections.abc import Iterable

import pandas as pd
from etils import epath

from vit_jax.compare import expected
from vit_jax.pages import drawing

OVER_TIME = ('step', 'epoch', 'hours', 'device_hours')
_METRICS = ('accuracy', 'loss')
_CONFIG = 'config.'


def plot(
  runs: pd.DataFrame,
  curves: pd.DataFrame,
  metric: str,
  x: str,
  path: epath.PathLike,
  reports: Iterable[expected.Report] = (),
) -> None:
  """Plots a metric and writes the picture.

  Args:
    runs: see `frames.load_runs`.
    curves: see `frames.load_curves`.
    metric: the y axis.
    x: the x axis: one of OVER_TIME, for a line per run; or a config key, for a
      point per run and a line through the means.
    path: a .png, .pdf or .svg file.
    reports: their published curves are drawn beside the runs over epochs.

  Raises:
    ValueError: matplotlib is not installed, or no run has that metric or key.
  """
  drawing.check_matplotlib()
  frame = curves if x in OVER_TIME else runs
  column = x if x in OVER_TIME else _CONFIG + x
  _check(frame, metric, [c for c in frame if c.endswith(_METRICS)])
  keys = [c.removeprefix(_CONFIG) for c in runs if c.startswith(_CONFIG)]
  _check(frame, column, [*OVER_TIME, *keys])
  frame = frame.dropna(subset=[metric, column])
  figure = drawing.new_figure((7, 4.5))
  axes = figure.subplots()
  if x in OVER_TIME:
    for name, run in frame.groupby('run', sort=False):
      axes.plot(
        run[column], run[metric], marker='.', label=drawing.literal(name)
      )
    published = {each.curve: each for each in reports if each.metric == metric}
    if published and x == 'epoch':
      for name, curve in published.items():
        label = drawing.literal(f'published: {name}')
        axes.plot(curve.epochs, curve.shares, 'k--', label=label)
      # The runs stay visible beside curves that are far longer.
      axes.set_xlim(0, min(axes.get_xlim()[1], 2 * frame['epoch'].max()))
    if frame['run'].nunique() <= 12:
      axes.legend(fontsize='small')
  else:
    values = frame[column]
    if pd.api.types.is_numeric_dtype(values):
      if values.min() > 0 and values.max() / values.min() >= 10:
        axes.set_xscale('log')
    else:
      frame = frame.assign(
        **{column: values.map(lambda v: drawing.literal(str(v)))}
      )
    means = frame.groupby(column)[metric].mean()
    axes.plot(means.index, means.values, alpha=0.5)
    axes.scatter(frame[column], frame[metric])
  axes.set_xlabel(drawing.literal(x))
  axes.set_ylabel(drawing.literal(metric))
  axes.grid(alpha=0.3)
  figure.savefig(path, dpi=150)


def _check(frame: pd.DataFrame, column: str, choices: list[str]) -> None:
  """Raises ValueError if no run has a value in a column."""
  if column not in frame or frame[column].isna().all():
    raise ValueError(
      f'no run has {column.removeprefix(_CONFIG)!r}; choose from'
      f' {sorted(choices)}.'
    )
