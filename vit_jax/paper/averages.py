"""Averages of our numbers: of a pre-training's runs, and over data sets.

The latter are Average-5 and VTAB's means; `means.py` has the paper's own.
"""

import statistics
from collections.abc import Iterable, Sequence

from vit_jax.paper.numbers import means
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, Transfer, Vtab

ACCURACY = 'test/accuracy'


def across(found: Sequence[Number | None]) -> Number | None:
  """The mean over data sets, run by run.

  Args:
    found: one for each data set, whose values are in the same order of seeds.

  Returns:
    As many values as each of them has; None if one is missing, if they don't
    have as many, or if there are none.
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
  """One value for each pre-training: the mean of those of its fine-tuning.

  Fine-tuning runs of one pre-training have what it learnt in common, so that
  they are no independent samples of what another pre-training would give.
  Claims are asked of this; tables print all values, see `Results.number`.

  Args:
    found: one for each pre-training, with a value for each fine-tuning run.

  Returns:
    None if one is missing, or if there are none.
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
  """Test accuracy on a task, in percent, a value for each pre-training."""
  return by_pretraining(results.transfer(start, task) for start in starts)


def average5_transfers(
  results: Results, starts: Iterable[Pretraining]
) -> Number | None:
  """`average5`, a value for each pre-training."""
  return by_pretraining(average5(results, start) for start in starts)


def average5(results: Results, *starts: Pretraining) -> Number | None:
  """The mean accuracy on five tasks, in percent (Figure 5, Table 7).

  It has a value for each seed of fine-tuning, of each of `starts`, which may
  differ in their own seed. These are not independent: see `by_pretraining`.
  """
  return across(
    [
      results.number([Transfer(start, task) for start in starts], ACCURACY)
      for task in means.AVERAGE5
    ]
  )


def vtab_tasks(results: Results, start: Pretraining) -> dict[str, list[str]]:
  """Group of VTAB -> its tasks that the means are over.

  With the paper's own data these are all 19. A miniature may have a stand-in
  for some only, and then for none in a group.
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
  """Fine-tuning of a model on the tasks of VTAB, in Table 9's order."""
  return [
    Vtab(start, task) for tasks in means.VTAB_GROUPS.values() for task in tasks
  ]


def vtab(results: Results, start: Pretraining) -> dict[str, Number | None]:
  """VTAB's means, in percent, a value for each seed of fine-tuning.

  Returns:
    'natural', 'specialized', 'structured', and 'mean' over the tasks of all
    groups, which is not the mean of the groups' (see `means.vtab_means`). Each
    is None as long as one of its own `vtab_tasks` is missing.
  """
  groups = vtab_tasks(results, start)
  groups['mean'] = [task for tasks in groups.values() for task in tasks]
  return {
    name: across(
      [results.number([Vtab(start, task)], ACCURACY) for task in tasks]
    )
    for name, tasks in groups.items()
  }


def vtab_notes(results: Results, starts: Iterable[Pretraining]) -> list[str]:
  """Says over which tasks the means are, where that is not all of them.

  Once, if these are the same for all of `starts`, as in miniature.
  """
  total = sum(map(len, means.VTAB_GROUPS.values()))
  notes = []
  for start in starts:
    found = vtab_tasks(results, start)
    count = sum(map(len, found.values()))
    parts = [
      f'{group} {len(tasks)} of {len(means.VTAB_GROUPS[group])}'
      for group, tasks in found.items()
    ]
    note = (
      f"VTAB's means of ours are over the {count} of {total} tasks that"
      f' something stands for in miniature: {", ".join(parts)}.'
    )
    if count < total and note not in notes:
      notes.append(note)
  return notes
