"""Which tasks of VTAB our means cover."""

from vit_jax.paper.numbers import VTAB_GROUPS
from vit_jax.paper.runs import Pretraining, Results, Vtab


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
    for group, tasks in VTAB_GROUPS.items()
  }


def vtab(results: Results, start: Pretraining) -> list[str]:
  """Returns a note on which tasks the means cover, if these are not all."""
  found = vtab_tasks(results, start)
  count = sum(map(len, found.values()))
  total = sum(map(len, VTAB_GROUPS.values()))
  parts = [
    f'{len(tasks)} of {len(VTAB_GROUPS[group])} {group.title()} tasks'
    for group, tasks in found.items()
  ]
  if count == total:
    return []
  return [
    f'Our VTAB means are over {count} of the {total} tasks. Only these tasks'
    f' have data in miniature: {", ".join(parts)}.'
  ]
