"""Compares runs: `python -m vit_jax.compare DIR [DIR...]`.

  python -m vit_jax.compare runs/transfer               prints a table
  python -m vit_jax.compare runs/a runs/b --metric=test/accuracy,test/loss
  python -m vit_jax.compare runs/a --plot=curves.png    plots accuracy by step
  python -m vit_jax.compare runs/sweep --x=schedule.peak --plot=rates.png
  python -m vit_jax.compare runs --x=device_hours --plot=cost.pdf
  python -m vit_jax.compare runs --csv=runs.csv         writes all columns

Each DIR is a run's work directory, or a folder of any number of them. The table
has one line per run: the config keys in which the runs differ, and the last
value of each metric.
"""

from collections.abc import Sequence

import pandas as pd
from absl import flags

from vit_jax.compare import frames, plots
from vit_jax.runtime import command_line, printable

_METRIC = flags.DEFINE_list(
  'metric',
  [],
  'Metrics in the table; by default all that end in accuracy, except those of'
  ' training batches.',
)
_X = flags.DEFINE_string(
  'x',
  'step',
  'The x axis of the plot: step, hours, device_hours, or a config key.',
)
_PLOT = flags.DEFINE_string(
  'plot', None, 'File for a plot of the first metric: .png, .pdf or .svg.'
)
_CSV = flags.DEFINE_string(
  'csv', None, 'File for all columns, one line per run.'
)

# Config sections and keys that the table leaves out, because they rarely
# explain a difference in results.
_UNINTERESTING = (
  *('config.evals.', 'config.log.', 'config.checkpoint.', 'config.guard.'),
  *('config.data.data_dir', 'config.data.num_examples'),
)
# Columns of `frames.load_runs` that identify the run and its progress; they are
# not metrics.
_NOT_METRICS = ('run', 'finished', 'step')
# Maximum length of a value in the table; longer ones are cut.
_LONGEST = 24


def choose(runs: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
  """Returns the metrics to show.

  Raises:
    ValueError: a name in `metrics` is not a metric of any run.
  """
  known = [
    c for c in runs if not c.startswith('config.') and c not in _NOT_METRICS
  ]
  if unknown := [name for name in metrics if name not in known]:
    raise ValueError(f'no run has {unknown}; choose from {known}.')
  return list(metrics) or [
    c for c in known if c.endswith('accuracy') and not c.startswith('train/')
  ]


def table(runs: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
  """Returns a table of the runs, with one line per run and shortened values.

  Its columns are the run, its progress, the config keys in which the runs
  differ, and the metrics.
  """
  differing = [
    column
    for column in runs
    if column.startswith('config.')
    and not column.startswith(_UNINTERESTING)
    and runs[column].map(str).nunique() > 1
  ]
  shown = runs[['run', 'finished', 'step', *differing, *metrics]]
  shown = shown.rename(columns=lambda c: c.removeprefix('config.'))
  return shown[['run']].join(shown.drop(columns='run').map(_short))


def _short(value):
  if isinstance(value, float):
    return '-' if pd.isna(value) else f'{value:.6g}'
  text = str(value)
  return text if len(text) <= _LONGEST else '...' + text[3 - _LONGEST :]


def main(folders: Sequence[str]) -> None:
  runs = frames.load_runs(*folders)
  metrics = choose(runs, _METRIC.value)
  shown = table(runs, metrics).to_string(index=False)
  print(printable.text(shown), flush=True)
  if _CSV.value:
    runs.to_csv(_CSV.value, index=False)
  if _PLOT.value:
    if not metrics:
      raise ValueError(
        'no run has an accuracy; name a metric with --metric=NAME.'
      )
    curves = frames.load_curves(*folders)
    plots.plot(runs, curves, metrics[0], _X.value, _PLOT.value)


if __name__ == '__main__':
  command_line.run(
    main, arguments='the work directories, or folders of them, such as runs'
  )
