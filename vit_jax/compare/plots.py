"""Plots a metric of `frames` over steps, time, or a config key."""

import pandas as pd
from etils import epath

from vit_jax.compare import drawing

OVER_TIME = ('step', 'hours', 'device_hours')


def plot(
  runs: pd.DataFrame,
  curves: pd.DataFrame,
  metric: str,
  x: str,
  path: epath.PathLike,
) -> None:
  """Plots a metric and writes the picture.

  Args:
    runs: see `frames.load_runs`.
    curves: see `frames.load_curves`.
    metric: the y axis.
    x: the x axis: one of OVER_TIME, for a line per run; or a config key, for a
      point per run and a line through the means.
    path: a .png, .pdf or .svg file.

  Raises:
    ValueError: matplotlib is not installed, or no run has that metric or key.
  """
  try:
    import matplotlib
  except ImportError:
    raise ValueError(
      'plots need matplotlib: pip install "vit-paper-jax[plot]"'
    ) from None
  matplotlib.use('Agg')
  import matplotlib.pyplot as plt

  frame = curves if x in OVER_TIME else runs
  column = x if x in OVER_TIME else f'config.{x}'
  for name in (metric, column):
    if name not in frame or frame[name].isna().all():
      choices = sorted(c for c in frame if c.endswith(('accuracy', 'loss')))
      raise ValueError(f'no run has {name!r}; metrics are {choices}.')
  frame = frame.dropna(subset=[metric, column])
  figure, axes = plt.subplots(figsize=(7, 4.5), layout='constrained')
  if x in OVER_TIME:
    for name, run in frame.groupby('run', sort=False):
      axes.plot(
        run[column], run[metric], marker='.', label=drawing.literal(name)
      )
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
  plt.close(figure)
