"""Guards: no cell of the result tables is mistyped.

The sums of columns and rows were computed from the paper, not from the tables
here. A mistyped digit or two exchanged cells would change some of them.
"""

import math

import pytest

from vit_jax.paper import numbers

T = numbers.TABLES


def _sum(values):
  return round(math.fsum(values), 5)


@pytest.mark.parametrize(
  'name, sums',
  [
    ('table5', [1646.02, 1614.06, 1653.92, 1622.44, 1130.91]),
    ('table6', [1520.59, 1597.76, 1781.84, 1654.58, 1720.05, 1774.59, 15721]),
    ('table7', [535.98, 532.72, 564.08, 562.33]),
    ('table8', [2.53621, 1.28010, 1.28314]),
    ('table9', [1552.6, 1525.8, 1454.2]),
  ],
)
def test_sums_of_the_columns(name, sums):
  table = T[name]
  found = [_sum(table.column(column).values()) for column in table.columns]
  assert found == sums


@pytest.mark.parametrize(
  'name, sums',
  [
    (
      'table5',
      [
        *(391.70, 346.86, 298.98, 323.15, 350.94, 370.84),
        *(495.30, 463.94, 416.52, 437.73, 496.80, 470.09),
        *(495.68, 463.47, 424.41, 443.72, 497.52, 479.70),
      ],
    ),
    (
      'table6',
      [
        *(603.77, 783.23, 755.64, 1348.04, 2134.20, 4831.47),
        *(581.21, 747.00, 641.42, 690.99, 1122.76, 1687.11, 3871.60),
        *(666.51, 837.05, 809.29, 1424.57, 2234.55),
      ],
    ),
    ('table7', [325.12, 393.26, 354.35, 372.27, 384.26, 365.85]),
    ('table8', [0.61382, 1.92462, 1.92069, 0.64032]),
    (
      'table9',
      [
        *(281.5, 251.5, 223.6, 298.7, 286.6, 189.5, 257.2),
        *(249.4, 288.8, 266.3, 229.0),
        *(248.4, 183.0, 144.7, 228.6, 188.7, 246.6, 99.9, 144.0),
        226.6,
      ],
    ),
  ],
)
def test_sums_of_the_rows(name, sums):
  table = T[name]
  assert [_sum(table.row(row).values()) for row in table.rows] == sums


def test_sums_of_table_2():
  cells = T['table2'].cells
  values, stds = [], []
  for column in T['table2'].columns:
    accuracies = [
      cells[row, column]
      for row in T['table2'].rows
      if row != 'TPUv3-core-days' and (row, column) in cells
    ]
    values.append(_sum(cell.value for cell in accuracies))
    stds.append(_sum(cell.std or 0 for cell in accuracies))
  assert values == [648.19, 644.96, 633.32, 643.50, 178.95]
  assert stds == [0.47, 0.71, 0.53, 2.12, 0]
  assert [
    _sum(T['table2'].row(row).values()) for row in T['table2'].rows[:-1]
  ] == [437.55, 450.97, 397.44, 375.21, 386.17, 398.66, 302.92]
