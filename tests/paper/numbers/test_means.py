"""Guards: Average-5 and VTAB's means match what the paper prints."""

import pytest

from vit_jax.paper import numbers
from vit_jax.vtab import __main__ as score
from vit_jax.vtab import tasks

# Average-5 of the rows of Table 6, in its order.
AVERAGES = (
  *(92.50, 94.08, 94.27, 95.12, 95.44, 95.82),
  *(89.33, 92.01, 91.67, 92.41, 94.01, 94.24, 95.09),
  *(94.27, 94.68, 94.85, 95.17, 95.36),
)


def test_average5_is_the_mean_of_exactly_five_tasks():
  row = {
    **{'ImageNet': 1.0, 'CIFAR-10': 2.0, 'CIFAR-100': 3.0},
    **{'Oxford-IIIT Pets': 4.0, 'Oxford Flowers-102': 10.0},
    **{'ImageNet ReaL': 90.0, 'exaFLOPs': 90.0},
  }
  assert numbers.average5(row) == 4.0


def test_average5_without_one_of_the_five_raises_and_names_it():
  row = dict.fromkeys(numbers.AVERAGE5, 1.0)
  del row['CIFAR-100']
  with pytest.raises(ValueError, match=r"missing: \['CIFAR-100'\]"):
    numbers.average5(row)


def test_average5_reproduces_the_averages_of_table_7():
  table = numbers.TABLES['table7']
  averages = [
    round(numbers.average5(table.column(column)), 2) for column in table.columns
  ]
  assert averages == [89.33, 88.79, 94.01, 93.72]
  assert averages == list(table.row('Average').values())


def test_average5_of_table_6():
  table = numbers.TABLES['table6']
  averages = tuple(
    round(numbers.average5(table.row(row)), 2) for row in table.rows
  )
  assert averages == AVERAGES


@pytest.mark.parametrize(
  'column, natural, specialized, structured, mean, printed',
  [
    ('ViT-H/14, JFT-300M', 86.69, 87.00, 65.03, 77.63, '77.6'),
    ('ViT-L/16, JFT-300M', 85.56, 86.73, 62.96, 76.29, '76.3'),
    ('ViT-L/16, ImageNet-21k', 83.27, 84.65, 57.50, 72.71, '72.7'),
  ],
)
def test_vtab_means_of_table_9(
  column, natural, specialized, structured, mean, printed
):
  table = numbers.TABLES['table9']
  means = numbers.vtab_means(table.column(column))
  assert round(means['mean'], 2) == mean
  assert f'{means["mean"]:.1f}' == table['Mean', column].printed == printed
  del means['mean']
  # The exact mean 65.025 is rounded to 65.03 above.
  assert means == pytest.approx(
    {
      'natural': natural,
      'specialized': specialized,
      'structured': structured,
    },
    abs=0.0051,
  )


def test_vtab_groups_match_the_data_package():
  assert tuple(numbers.VTAB_GROUPS) == tasks.GROUPS
  for group, titles in numbers.VTAB_GROUPS.items():
    assert titles == tuple(
      task.title for task in tasks.TASKS.values() if task.group == group
    )


def test_vtab_means_equal_those_of_the_command():
  accuracies = {name: i**2 for i, name in enumerate(tasks.TASKS)}
  titles = {
    tasks.TASKS[name].title: accuracy for name, accuracy in accuracies.items()
  }
  assert numbers.vtab_means(titles) == score.means(accuracies)
