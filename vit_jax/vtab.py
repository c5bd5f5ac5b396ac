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
from vit_jax.data.sources import vtab_tasks
from vit_jax.runtime import command_line
from vit_jax.workdir import files


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
  """Returns the mean of each group and the mean over all tasks.

  The score is the mean over the 19 tasks, not over the three groups.

  Args:
    accuracies: task -> accuracy, in any unit; exactly the 19 tasks.

  Returns:
    'natural', 'specialized', 'structured' and 'mean', in the same unit.

  Raises:
    ValueError: tasks are missing or unknown; the message names them.
  """
  missing = [name for name in vtab_tasks.TASKS if name not in accuracies]
  unknown = [name for name in accuracies if name not in vtab_tasks.TASKS]
  if missing or unknown:
    raise ValueError(
      f'VTAB is the mean over {len(vtab_tasks.TASKS)} tasks; missing:'
      f' {missing}, unknown: {unknown}.'
    )
  result = {
    group: statistics.fmean(
      accuracies[task.name]
      for task in vtab_tasks.TASKS.values()
      if task.group == group
    )
    for group in vtab_tasks.GROUPS
  }
  return result | {'mean': statistics.fmean(accuracies.values())}


def read(workdir: epath.PathLike, evaluation: str = 'test') -> dict[str, float]:
  """Returns the accuracies of the tasks whose run is finished.

  Args:
    workdir: holds the run of each task in `workdir/TASK`.
    evaluation: the entry of the runs' `evals` to read.

  Returns:
    Task -> accuracy in [0, 1], in the order of the tasks.
  """
  accuracies = {}
  for name in vtab_tasks.TASKS:
    run = epath.Path(workdir) / name
    key = f'{evaluation}/accuracy'
    if results.finished_at(run) is not None:
      final = results.final_metrics(run)
      if key in final:
        accuracies[name] = final[key]
  return accuracies


def table(accuracies: Mapping[str, float]) -> str:
  """Returns a line per task (`-`: no result), and the means of all 19 tasks."""
  lines = []
  for group in vtab_tasks.GROUPS:
    for task in vtab_tasks.TASKS.values():
      if task.group == group:
        lines.append(_line(group, task.title, accuracies.get(task.name)))
  if accuracies.keys() == vtab_tasks.TASKS.keys():
    for name, value in means(accuracies).items():
      count = sum(name in ('mean', t.group) for t in vtab_tasks.TASKS.values())
      lines.append(_line(name, f'{count} tasks', value))
  return '\n'.join(lines)


def _line(group: str, title: str, accuracy: float | None) -> str:
  value = '-' if accuracy is None else f'{100 * accuracy:.2f}'
  return f'{group:<11}  {title:<11}  {value:>6}'


def _why_nothing(workdir: str, evaluation: str = 'test') -> str:
  """Returns why no accuracies were found."""
  found = {
    key.removesuffix('/accuracy')
    for name in vtab_tasks.TASKS
    if results.finished_at(epath.Path(workdir) / name) is not None
    for key in results.final_metrics(epath.Path(workdir) / name)
    if key.endswith('/accuracy') and key != 'train/accuracy'
  }
  if not found:
    return f'{workdir} has no finished run of a task in {workdir}/TASK.'
  return (
    f'No finished run in {workdir} has the evaluation {evaluation!r}; pass'
    f' one of {sorted(found)} after DIR.'
  )


def main(words: Sequence[str]):
  if len(words) > 2:
    raise ValueError(f'expected only DIR and EVALUATION, not {words[2:]} too.')
  accuracies = read(files.absolute(words[0]), *words[1:])
  if not accuracies:
    raise ValueError(_why_nothing(*words))
  print(table(accuracies), flush=True)
  # Raises an error that names the missing tasks.
  means(accuracies)


if __name__ == '__main__':
  command_line.run(
    main, arguments='the directory of the runs, such as runs/vtab'
  )
