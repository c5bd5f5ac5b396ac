"""The two averages over data sets that the paper reports."""

import statistics
from collections.abc import Mapping

from vit_jax.paper.numbers import values

# The paper does not name the five. These reproduce the averages of its Table 7,
# and they are the five of MLP-Mixer (arXiv:2105.01601), which is by the same
# group and names them.
AVERAGE5 = (
  values.IMAGENET,
  values.CIFAR10,
  values.CIFAR100,
  values.PETS,
  values.FLOWERS,
)

# Tasks as Table 9 prints them, by group. `vtab.tasks` has the same, but
# imports NumPy.
VTAB_GROUPS = {
  'natural': (
    *('Caltech101', 'CIFAR-100', 'DTD', 'Flowers102', 'Pets', 'Sun397'),
    'SVHN',
  ),
  'specialized': ('Camelyon', 'EuroSAT', 'Resisc45', 'Retinopathy'),
  'structured': (
    *('Clevr-Count', 'Clevr-Dist', 'DMLab', 'dSpr-Loc', 'dSpr-Ori'),
    *('KITTI-Dist', 'sNORB-Azim', 'sNORB-Elev'),
  ),
}


def average5(row: Mapping[str, float]) -> float:
  """Returns Figure 5's Average-5, in the unit of the accuracies.

  Args:
    row: data set -> accuracy, such as `TABLES['table6'].row(...)`; data sets
      that are not in `AVERAGE5` do not count.

  Raises:
    ValueError: one of the five is missing; names it.
  """
  missing = [name for name in AVERAGE5 if name not in row]
  if missing:
    raise ValueError(
      f'Average-5 is over {", ".join(AVERAGE5)}; missing: {missing}.'
    )
  return statistics.fmean(row[name] for name in AVERAGE5)


def vtab_means(column: Mapping[str, float]) -> dict[str, float]:
  """Returns VTAB's means, of the groups and over the 19 tasks.

  VTAB's score is the mean over the tasks, not that of the three groups' means.

  Args:
    column: task, as Table 9 prints it, -> accuracy, such as
      `TABLES['table9'].column(...)`; its row `Mean` does not count.

  Returns:
    'natural', 'specialized', 'structured' and 'mean', in the same unit.

  Raises:
    ValueError: one of the 19 tasks is missing; names it.
  """
  tasks = [task for group in VTAB_GROUPS.values() for task in group]
  missing = [task for task in tasks if task not in column]
  if missing:
    raise ValueError(f'VTAB is over {len(tasks)} tasks; missing: {missing}.')
  means = {
    name: statistics.fmean(column[task] for task in group)
    for name, group in VTAB_GROUPS.items()
  }
  return means | {'mean': statistics.fmean(column[task] for task in tasks)}
