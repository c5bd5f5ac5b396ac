"""Writes and prints the table of a finished or running sweep.

  python -m vit_jax.sweep.table --workdir=SWEEPDIR

SWEEPDIR/results.md has, for each study, the candidate that was chosen on
held-out data, and the mean and standard deviation over the final runs. For a
file with a line for each run: python -m vit_jax.compare SWEEPDIR --csv=FILE.
"""

import pathlib

from absl import flags

from vit_jax.runtime import command_line
from vit_jax.sweep import bring_to_end, reading, schedule, state
from vit_jax.sweep.spec import Run, Study, Sweep

WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the sweep, on this machine.'
)


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
      (study.name, label(run), _held_out(run, finished), {}, '1')
      for run in study.candidates
      if run.name in finished
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
  run, held_out = '', ''
  if chosen:
    run, held_out = label(chosen), _held_out(chosen, finished)
  return [(study.name, run, held_out, state.mean_and_std(done), count)]


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
  """Writes the table to `results.md`; returns it."""
  text = render(sweep, finished)
  (local / 'results.md').write_text(text + '\n')
  return text


def main() -> None:
  local = pathlib.Path(WORKDIR.value).absolute()
  file, folders = state.recorded(local)
  sweep = reading.load(file)
  finished = bring_to_end.read_finished(sweep, folders)
  print(write(local, sweep, finished))


if __name__ == '__main__':
  command_line.run(main, required=('workdir',))
