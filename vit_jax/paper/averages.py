"""Averages of our numbers: over fine-tuning runs, and over data sets.

The averages over data sets are Average-5 and VTAB's means; `numbers/means.py`
computes those of the paper's numbers.
"""

import statistics
from collections.abc import Iterable, Sequence

from vit_jax.paper.numbers import means
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, Transfer, Vtab

ACCURACY = 'test/accuracy'
FEW_SHOT = 'few_shot/5shot/accuracy'


def across(found: Sequence[Number | None]) -> Number | None:
  """Returns the mean over data sets, run by run.

  Args:
    found: one for each data set, with values in the same order of seeds.

  Returns:
    One value for each run; None if a number is missing, if the numbers have
    different counts of values, or if `found` is empty.
  """
  if not found or None in found:
    return None
  if len({len(number.values) for number in found}) > 1:
    return None
  columns = zip(*(number.values for number in found), strict=True)
  runs = zip(*(number.runs for number in found), strict=True)
  return Number(
    tuple(statistics.fmean(column) for column in columns),
    tuple(' + '.join(names) for names in runs),
  )


def by_pretraining(found: Iterable[Number | None]) -> Number | None:
  """Returns a value for each pre-training: the mean of its fine-tuning runs.

  Fine-tuning runs of one pre-training share what it learnt, so they are not
  independent samples of what another pre-training would give. Claims are tested
  on these means; tables print all values, see `Results.number`.

  Args:
    found: one for each pre-training, with a value for each fine-tuning run.

  Returns:
    None if a number is missing or `found` is empty.
  """
  found = list(found)
  if not found or None in found:
    return None
  return Number(
    tuple(number.mean for number in found),
    tuple(' + '.join(number.runs) for number in found),
  )


def transfers(
  results: Results, starts: Iterable[Pretraining], task: str
) -> Number | None:
  """Returns a task's test accuracy in percent, a value per pre-training."""
  return by_pretraining(results.transfer(start, task) for start in starts)


def average5_transfers(
  results: Results, starts: Iterable[Pretraining]
) -> Number | None:
  """Returns `average5` with one value for each pre-training."""
  return by_pretraining(average5(results, start) for start in starts)


def average5(results: Results, *starts: Pretraining) -> Number | None:
  """Returns the mean accuracy on five tasks, in percent (Figure 5, Table 7).

  There is a value for each fine-tuning seed of each of `starts`, which may
  differ in their own seed. The values are not independent: see
  `by_pretraining`.
  """
  return across(
    [
      results.number([Transfer(start, task) for start in starts], ACCURACY)
      for task in means.AVERAGE5
    ]
  )


def vtab_tasks(results: Results, start: Pretraining) -> dict[str, list[str]]:
  """Returns group of VTAB -> the tasks that its mean covers.

  With the paper's own data, the means cover all 19 tasks. A miniature may have
  stand-ins for only some tasks, and for no task of some groups.
  """
  return {
    group: [
      task
      for task in tasks
      if results.comparable or results.has(Vtab(start, task))
    ]
    for group, tasks in means.VTAB_GROUPS.items()
  }


def vtab_nodes(start: Pretraining) -> list[Vtab]:
  """Returns a model's fine-tuning on each task of VTAB, in Table 9's order."""
  return [
    Vtab(start, task) for tasks in means.VTAB_GROUPS.values() for task in tasks
  ]


def vtab(
  results: Results, start: Pretraining, *others: Pretraining
) -> dict[str, Number | None]:
  """Returns VTAB's means, in percent, with a value for each fine-tuning seed.

  Args:
    results: knows the runs.
    start: the pre-training.
    others: further ones that differ only in their seed; their values follow.

  Returns:
    'natural', 'specialized', 'structured', and 'mean' over the tasks of all
    groups, which differs from the mean of the groups' means (see
    `means.vtab_means`). A mean is None while one of its tasks is missing.
  """
  groups = vtab_tasks(results, start)
  groups['mean'] = [task for tasks in groups.values() for task in tasks]
  return {
    name: across(
      [
        results.number([Vtab(one, task) for one in (start, *others)], ACCURACY)
        for task in tasks
      ]
    )
    for name, tasks in groups.items()
  }


def vtab_notes(results: Results, starts: Iterable[Pretraining]) -> list[str]:
  """Returns notes on which tasks the means cover, if these are not all tasks.

  There is a single note if it is the same for all of `starts`, as in miniature.
  """
  total = sum(map(len, means.VTAB_GROUPS.values()))
  notes = []
  for start in starts:
    found = vtab_tasks(results, start)
    count = sum(map(len, found.values()))
    parts = [
      f'{len(tasks)} of {len(means.VTAB_GROUPS[group])} {group.title()} tasks'
      for group, tasks in found.items()
    ]
    note = (
      f'Our VTAB means are over {count} of the {total} tasks. Only these tasks'
      f' have data in miniature: {", ".join(parts)}.'
    )
    if count < total and note not in notes:
      notes.append(note)
  return notes
