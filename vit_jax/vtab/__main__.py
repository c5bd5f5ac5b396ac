"""Computes VTAB's score: `python -m vit_jax.vtab DIR [EVALUATION]`.

Prints the accuracy of each task, the means of the three groups, and the mean
over the 19 tasks, which is the score. The run of each task is in DIR/TASK,
where `configs/vtab.py:MODEL,all` puts it. EVALUATION is `test` by default; runs
with `train=selection` have `validation`.
"""

import statistics
from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax import results
from vit_jax.runtime import command_line, text_table
from vit_jax.vtab.tasks import GROUPS, TASKS
from vit_jax.workdir import files


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
  """Returns the mean of each group and the mean over all tasks.

  The score is the mean over the 19 tasks, not over the three groups.

  Args:
    accuracies: task -> accuracy, in any unit.

  Returns:
    'natural', 'specialized', 'structured' and 'mean', in the same unit.

  Raises:
    ValueError: tasks are missing; the message names them.
  """
  if missing := [name for name in TASKS if name not in accuracies]:
    raise ValueError(
      f'VTAB is the mean over {len(TASKS)} tasks; missing: {missing}.'
    )
  return {
    group: statistics.fmean(
      accuracies[task.name] for task in TASKS.values() if task.group == group
    )
    for group in GROUPS
  } | {'mean': statistics.fmean(accuracies.values())}


def read(workdir: epath.PathLike, evaluation: str) -> dict[str, float]:
  """Returns the accuracies of the tasks whose run is finished.

  Args:
    workdir: holds the run of each task in `workdir/TASK`.
    evaluation: the name of an evaluation of the runs.

  Returns:
    Task -> accuracy in [0, 1], in the order of the tasks.

  Raises:
    ValueError: no finished run has the evaluation.
  """
  finished = {
    name: results.final_metrics(epath.Path(workdir) / name)
    for name in TASKS
    if results.finished_at(epath.Path(workdir) / name) is not None
  }
  metric = f'{evaluation}/accuracy'
  found = {n: run[metric] for n, run in finished.items() if metric in run}
  if not found:
    known = sorted({k for run in finished.values() for k in run if '/acc' in k})
    raise ValueError(
      f'No run of a task in {workdir}/TASK is finished with {metric}; finished'
      f' runs have {known}. Pass the name of an evaluation after DIR.'
    )
  return found


def table(accuracies: Mapping[str, float]) -> str:
  """Returns a line per task (`-`: no result), and the means of all 19 tasks."""
  rows = [(t.group, t.title, accuracies.get(t.name)) for t in TASKS.values()]
  if accuracies.keys() == TASKS.keys():
    for group, value in means(accuracies).items():
      count = sum(group in ('mean', task.group) for task in TASKS.values())
      rows.append((group, f'{count} tasks', value))
  cells = [
    (group, title, '-' if value is None else f'{100 * value:.2f}')
    for group, title, value in rows
  ]
  return text_table.aligned(cells, left=2)


def main(words: Sequence[str]):
  if len(words) > 2:
    raise ValueError(f'expected only DIR and EVALUATION, not {words[2:]} too.')
  workdir, evaluation = [*words, 'test'][:2]
  accuracies = read(files.absolute(workdir), evaluation)
  print(table(accuracies), flush=True)
  # Raises an error that names the missing tasks.
  means(accuracies)


if __name__ == '__main__':
  command_line.run(
    main, arguments='the directory of the runs, such as runs/vtab'
  )
