"""Compares runs: `python -m vit_jax.compare DIR [DIR...]`.

  python -m vit_jax.compare runs/transfer               prints a table
  python -m vit_jax.compare runs/a runs/b --metric=test/accuracy,test/loss
  python -m vit_jax.compare runs/a --plot=curves.png    plots accuracy by step
  python -m vit_jax.compare runs/sweep --x=schedule.peak --plot=rates.png
  python -m vit_jax.compare runs --x=device_hours --plot=cost.pdf
  python -m vit_jax.compare runs --csv=runs.csv         writes all columns
  python -m vit_jax.compare runs --serve                a live page of the runs
  python -m vit_jax.compare runs/b16 --expected=auto    are the runs on track?

Each DIR is a run's work directory, or a folder of any number of them. The table
has one line per run: the last value of each accuracy or of --metric, and the
config keys in which the runs differ.

--serve shows runs in progress in a browser on this machine: their state, speed
and curves, which follow the files. --serve=PORT chooses the port. It needs no
internet. For runs on another machine, start it there, and forward the port:
ssh -L 6008:localhost:6008 MACHINE.

--expected=auto compares the accuracy of each run with a published curve of
accuracy by epoch: the one with the same model, data, number of epochs and kind
of initial weights. Other settings that differ are listed, and make the run not
comparable. --expected=NAME chooses a published curve (a wrong name lists them),
and --expected=FILE.csv one of your own, with the columns epoch and accuracy in
percent. A plot has the curve over epochs, and the live page has it, too.
  A run is on track if its last accuracy is between those that are published for
two epochs earlier and later (at most a twentieth of the run), give or take 1.5
points at the start of training, falling to 0.5 at its end. Before the curve's
second point it is too early to tell.
"""

import shutil
from collections.abc import Sequence

from absl import flags

from vit_jax.compare import expected, frames, plots, table
from vit_jax.compare.live import server
from vit_jax.runtime import command_line, printable

_METRIC = flags.DEFINE_list(
  'metric',
  [],
  'Metrics in the table; by default all that end in /accuracy, except those of'
  ' training batches.',
)
_X = flags.DEFINE_string(
  'x',
  None,
  'The x axis of the plot: step, epoch, hours, device_hours, or a config key.'
  ' The default is step, with --expected epoch.',
)
_PLOT = flags.DEFINE_string(
  'plot', None, 'File for a plot of the first metric: .png, .pdf or .svg.'
)
_CSV = flags.DEFINE_string(
  'csv', None, 'File for all columns, one line per run.'
)
_EXPECTED = flags.DEFINE_string(
  'expected',
  None,
  'A published curve to compare with: auto, its name, or a CSV file.',
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
  choices = expected.choose(_EXPECTED.value) if _EXPECTED.value else []
  if _SERVE.value is not None:
    if _CSV.value or _PLOT.value:
      raise ValueError('--serve draws a page: leave out --csv and --plot.')
    options = _METRIC.value, _HOST.value, _SERVE.value, choices
    server.Server(folders, *options).serve()
    return
  runs = frames.load_runs(*folders)
  metrics = table.choose(runs, _METRIC.value)
  width = shutil.get_terminal_size((120, 24)).columns
  print(table.render(runs, metrics, width), flush=True)
  reports = expected.reports(choices, *folders) if choices else {}
  for name, report in reports.items():
    beside = f' ({report.curve})' if report.curve else ''
    print(printable.text(f'{name}{beside}: {report.sentence}'), flush=True)
  if not all(report.curve for report in reports.values()):
    print('Published curves:', *(c.name for c in choices), sep='\n  ')
  if _CSV.value:
    runs.to_csv(_CSV.value, index=False)
  if _PLOT.value:
    compared = [r.metric for r in reports.values() if r.metric]
    drawn = _METRIC.value or compared or metrics
    if not drawn:
      raise ValueError(
        'no run has an accuracy; name a metric with --metric=NAME.'
      )
    x = _X.value or ('epoch' if compared else 'step')
    curves = frames.load_curves(*folders)
    plots.plot(runs, curves, drawn[0], x, _PLOT.value, reports.values())
    print(f'The plot is in {_PLOT.value}.')


if __name__ == '__main__':
  command_line.run(
    main, arguments='the work directories, or folders of them, such as runs'
  )
