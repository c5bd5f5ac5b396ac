"""Compares runs: `python -m vit_jax.compare DIR [DIR...]`.

  python -m vit_jax.compare runs/transfer               prints a table
  python -m vit_jax.compare runs/a runs/b --metric=test/accuracy,test/loss
  python -m vit_jax.compare runs/a --plot=curves.png    plots accuracy by step
  python -m vit_jax.compare runs/sweep --x=schedule.peak --plot=rates.png
  python -m vit_jax.compare runs --x=device_hours --plot=cost.pdf
  python -m vit_jax.compare runs --csv=runs.csv         writes all columns
  python -m vit_jax.compare runs --serve                a live page of the runs

Each DIR is a run's work directory, or a folder of any number of them. The table
has one line per run: the last value of each accuracy or of --metric, and the
config keys in which the runs differ.

--serve shows runs in progress in a browser on this machine: their state, speed
and curves, which follow the files. --serve=PORT chooses the port. It needs no
internet. For runs on another machine, start it there, and forward the port:
ssh -L 6008:localhost:6008 MACHINE.
"""

import shutil
from collections.abc import Sequence

from absl import flags

from vit_jax.compare import frames, plots, table
from vit_jax.compare.live import server
from vit_jax.runtime import command_line

_METRIC = flags.DEFINE_list(
  'metric',
  [],
  'Metrics in the table; by default all that end in /accuracy, except those of'
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

_SERVE = command_line.define_optional(
  'serve',
  'Show the runs on a live page; --serve=PORT chooses its port. --metric names'
  ' the only curves to draw.',
)
_HOST = flags.DEFINE_string(
  'host',
  '127.0.0.1',
  'The address at which the live page is. 0.0.0.0 shows it to all who can reach'
  ' this machine, without a password.',
)


def main(folders: Sequence[str]) -> None:
  if _SERVE.value is not None:
    if _CSV.value or _PLOT.value:
      raise ValueError('--serve draws a page: leave out --csv and --plot.')
    server.serve(folders, _METRIC.value, _HOST.value, _SERVE.value)
    return
  runs = frames.load_runs(*folders)
  metrics = table.choose(runs, _METRIC.value)
  width = shutil.get_terminal_size((120, 24)).columns
  print(table.render(runs, metrics, width), flush=True)
  if _CSV.value:
    runs.to_csv(_CSV.value, index=False)
  if _PLOT.value:
    if not metrics:
      raise ValueError(
        'no run has an accuracy; name a metric with --metric=NAME.'
      )
    curves = frames.load_curves(*folders)
    plots.plot(runs, curves, metrics[0], _X.value, _PLOT.value)
    print(f'The plot is in {_PLOT.value}.')


if __name__ == '__main__':
  command_line.run(
    main, arguments='the work directories, or folders of them, such as runs'
  )
