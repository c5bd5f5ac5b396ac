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
from vit_jax.runtime import command_line
from vit_jax.vtab.tasks import GROUPS, TASKS
from vit_jax.workdir import files

_ACCURACY = '/accuracy'


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
  missing = [name for name in TASKS if name not in accuracies]
  unknown = [name for name in accuracies if name not in TASKS]
  if missing or unknown:
    raise ValueError(
      f'VTAB is the mean over {len(TASKS)} tasks; missing: {missing}, unknown:'
      f' {unknown}.'
    )
  return {
    group: statistics.fmean(
      accuracies[task.name] for task in TASKS.values() if task.group == group
    )
    for group in GROUPS
  } | {'mean': statistics.fmean(accuracies.values())}


def read(workdir: epath.PathLike) -> dict[str, dict[str, float]]:
  """Returns the accuracies of the tasks whose run is finished.

  Args:
    workdir: holds the run of each task in `workdir/TASK`.

  Returns:
    Evaluation -> task -> accuracy in [0, 1], in the order of the tasks.
  """
  found: dict[str, dict[str, float]] = {}
  for name in TASKS:
    run = epath.Path(workdir) / name
    if results.finished_at(run) is None:
      continue
    for key, value in results.final_metrics(run).items():
      if key.endswith(_ACCURACY) and not key.startswith('train/'):
        found.setdefault(key.removesuffix(_ACCURACY), {})[name] = value
  return found


def table(accuracies: Mapping[str, float]) -> str:
  """Returns a line per task (`-`: no result), and the means of all 19 tasks."""
  rows = [(t.group, t.title, accuracies.get(t.name)) for t in TASKS.values()]
  if accuracies.keys() == TASKS.keys():
    for group, value in means(accuracies).items():
      count = sum(group in ('mean', task.group) for task in TASKS.values())
      rows.append((group, f'{count} tasks', value))
  return '\n'.join(
    f'{group:<11}  {title:<11}  '
    + ('     -' if value is None else f'{100 * value:>6.2f}')
    for group, title, value in rows
  )


def main(words: Sequence[str]):
  if len(words) > 2:
    raise ValueError(f'expected only DIR and EVALUATION, not {words[2:]} too.')
  workdir, evaluation = [*words, 'test'][:2]
  found = read(files.absolute(workdir))
  if not found:
    raise ValueError(
      f'{workdir} has no finished run of a task in {workdir}/TASK.'
    )
  if evaluation not in found:
    raise ValueError(
      f'No finished run in {workdir} has the evaluation {evaluation!r}; pass'
      f' one of {sorted(found)} after DIR.'
    )
  print(table(found[evaluation]), flush=True)
  # Raises an error that names the missing tasks.
  means(found[evaluation])


if __name__ == '__main__':
  command_line.run(
    main, arguments='the directory of the runs, such as runs/vtab'
  )
