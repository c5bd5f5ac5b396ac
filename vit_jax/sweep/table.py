"""Writes the results of a finished or running sweep to a file and a table.

  python -m vit_jax.sweep.table --workdir=SWEEPDIR [--sweep=FILE[:ARGUMENT]]

writes SWEEPDIR/results.csv (and .parquet, with pyarrow), which has a line for
each finished run. It also writes and prints SWEEPDIR/results.md: for each study
the candidate that was chosen on held-out data, and the mean and standard
deviation over the final runs. --sweep adds the sweep's own summary.
"""

import importlib.util
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from absl import flags

from vit_jax.runtime import command_line
from vit_jax.sweep import bring_to_end, reading, schedule, state
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run, Study, Sweep
from vit_jax.workdir import files

_WORKDIR = flags.DEFINE_string('workdir', None, 'Directory of the sweep.')
_RUNS = flags.DEFINE_string(
  'runs', None, "Folder of the runs' work directories; default: --workdir."
)
_SWEEP = flags.DEFINE_string(
  'sweep', None, 'FILE[:ARGUMENT]: the sweep whose summary is printed too.'
)

# The metrics that depend on no clock, so that the same run gives the same file.
_MEASURED = (
  *('accuracy', 'top5_accuracy', 'loss', 'ece', 'count'),
  *('std', 'l2', 'selection_accuracy'),
)


def gather(sweep: Sweep, finished: schedule.Finished):
  """Returns a row for each finished run: study, run, role, labels, metrics.

  `role` is `candidate`, `chosen` (the chosen candidate) or `final`. A run that
  two studies share has a row for each study.

  Returns:
    A `pandas.DataFrame`.
  """
  import pandas as pd

  rows = []
  for study in sweep.studies:
    chosen = schedule.winner(study, finished)
    candidates = {run.name for run in study.candidates}
    for run in schedule.known(study, finished):
      if run.name not in finished:
        continue
      role = 'candidate' if run.name in candidates else 'final'
      if chosen is not None and run.name == chosen.name:
        role = 'chosen'
      measured = {
        key: value
        for key, value in sorted(finished[run.name].items())
        if key.rpartition('/')[2] in _MEASURED or key == 'step'
      }
      rows.append(
        {'study': study.name, 'run': run.name, 'role': role}
        | dict(run.labels)
        | measured
      )
  return pd.DataFrame(rows)


def render(sweep: Sweep, finished: schedule.Finished) -> str:
  """Returns the table as Markdown, with accuracies in percent."""
  rows = [row for study in sweep.studies for row in _rows(study, finished)]
  tests = sorted({name for _, _, _, reported, _ in rows for name in reported})
  header = ['study', 'run', 'held-out', *tests, 'runs']
  lines = [header, ['---', '---', *['---:'] * (len(header) - 2)]]
  for study, run, held_out, reported, count in rows:
    cells = [reported.get(name, '') for name in tests]
    lines.append([study, run, held_out, *cells, count])
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    f'| {" | ".join(map(str.ljust, line, widths))} |' for line in lines
  )


def _rows(
  study: Study, finished: schedule.Finished
) -> list[tuple[str, str, str, dict[str, str], str]]:
  """Returns a study's (study, run, held-out, {eval: mean ± std}, runs) rows."""
  if study.finals is None:
    return [
      (
        study.name,
        label(run),
        _held_out(run, finished),
        {},
        str(int(run.name in finished)),
      )
      for run in study.candidates
    ]
  chosen = schedule.winner(study, finished)
  finals = schedule.reported(study, finished)
  if finals is None:
    done = sum(run.name in finished for run in study.candidates)
    count = f'{done} of {len(study.candidates)} candidates'
    return [(study.name, 'not chosen yet', '', {}, count)]
  done = [finished[run.name] for run in finals if run.name in finished]
  count = str(len(done))
  if len(done) < len(finals):
    count += f' of {len(finals)}'
  return [
    (
      study.name,
      label(chosen) if chosen else '',
      _held_out(chosen, finished) if chosen else '',
      mean_and_std(done),
      count,
    )
  ]


def mean_and_std(runs: Sequence[Mapping[str, float]]) -> dict[str, str]:
  """Returns mean and standard deviation of accuracies over runs, in percent.

  The standard deviation is that of a sample (n - 1). A single run has none.
  """
  names = {
    key.removesuffix('/accuracy')
    for metrics in runs
    for key in metrics
    if key.endswith('/accuracy')
  }
  result = {}
  for name in names - {'train'}:
    key = f'{name}/accuracy'
    values = [100 * metrics[key] for metrics in runs if key in metrics]
    text = f'{statistics.fmean(values):.2f}'
    if len(values) > 1:
      text += f' ± {statistics.stdev(values):.2f}'
    result[name] = text
  return result


def label(run: Run) -> str:
  """Returns a run's labels, such as `rate=0.03, dropout=0.1`."""
  return ', '.join(f'{key}={value}' for key, value in run.labels.items())


def _held_out(run: Run, finished: schedule.Finished) -> str:
  if run.name not in finished:
    return ''
  value = state.held_out_accuracy(run.name, finished[run.name])
  return f'{100 * value:.2f}'


def write(
  local: pathlib.Path, sweep: Sweep, finished: schedule.Finished
) -> str:
  """Writes `results.md`, `.csv` and `.parquet`; returns the summary."""
  table = local / 'results.md'
  table.write_text(render(sweep, finished) + '\n')
  frame = gather(sweep, finished)
  frame.to_csv(local / 'results.csv', index=False)
  if importlib.util.find_spec('pyarrow'):
    frame.to_parquet(local / 'results.parquet', index=False)
  if sweep.summary is None:
    return ''
  text = f'\n{sweep.summary(frame)}\n'
  with table.open('a') as file:
    file.write(text)
  return text


def main() -> None:
  local = pathlib.Path(_WORKDIR.value).absolute()
  folders = Folders(local, files.absolute(_RUNS.value or _WORKDIR.value))
  sweep = state.recorded(local)
  if _SWEEP.value:
    summary = reading.load(_SWEEP.value).summary
    sweep = Sweep(sweep.studies, summary)
  finished = bring_to_end.read_finished(sweep, folders)
  print(render(sweep, finished), flush=True)
  print(write(local, sweep, finished), end='')


if __name__ == '__main__':
  command_line.run(main, required=('workdir',))
