"""The types of the numbers that the paper prints, and names of its data sets.

The numbers of tables are in `printed.json`: of each table the title, the
columns, the rows as printed, and which values differ from what is read there;
those of figures and the text are beside them, in `vit_jax.paper.items`. This is
plain data, which loads fast: no array library is imported.
"""

import dataclasses
import json
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

IMAGENET = 'ImageNet'
REAL = 'ImageNet ReaL'
CIFAR10 = 'CIFAR-10'
CIFAR100 = 'CIFAR-100'
PETS = 'Oxford-IIIT Pets'
FLOWERS = 'Oxford Flowers-102'
VTAB = 'VTAB'
IMAGENET21K = 'ImageNet-21k'
JFT = 'JFT-300M'

# The paper does not name the five data sets of its averages. These reproduce
# the averages of Table 7, and they are the five of MLP-Mixer
# (arXiv:2105.01601), which is by the same group and names them.
AVERAGE5 = (IMAGENET, CIFAR10, CIFAR100, PETS, FLOWERS)
_THOUSANDS = {'': 1, 'k': 1_000, 'M': 1_000_000}
_NUMBER = re.compile(r'(-?\d+\.?\d*(?:e-?\d+)?)(?:±(\d+\.\d+))?([kM]?)')


@dataclasses.dataclass(frozen=True)
class Value:
  """A number as the paper gives it.

  Attributes:
    value: in the unit that the paper prints, so 88.55 is a percentage and
      0.61382 a fraction; 2.5k is 2500. Some settings are text, such as `7/14`.
    std: standard deviation over runs, if printed.
    note: where the number is from or how certain it is, unless its table says
      so. It begins with `derived` or `approximate` if the number is not
      printed.
    printed: exactly what is printed, such as `93.40`; '' if nothing is.
  """

  value: float | str
  std: float | None = None
  note: str = ''
  printed: str = ''

  def noted(self, note: str) -> 'Value':
    """Returns the same number with another note."""
    return dataclasses.replace(self, note=note)


@dataclasses.dataclass(frozen=True)
class Printed:
  """A table of the paper, row by row.

  Attributes:
    name: such as `table5`.
    title: what it is about.
    rows: labels, in the paper's order and with our names of the models.
    columns: labels, likewise.
    cells: (row, column) -> value; cells with a printed dash are absent.
  """

  name: str
  title: str
  rows: tuple[str, ...]
  columns: tuple[str, ...]
  cells: Mapping[tuple[str, str], Value]

  def __getitem__(self, row_column: tuple[str, str]) -> Value | None:
    """Returns the cell of (row, column), None if a dash is printed there.

    Raises:
      KeyError: there is no such row or column.
    """
    row, column = row_column
    if row not in self.rows or column not in self.columns:
      raise KeyError(f'{self.name} has no row {row!r} or no column {column!r}.')
    return self.cells.get((row, column))

  def row(self, row: str) -> dict[str, float | str]:
    """Returns column -> value, without the dashes."""
    cells = {column: self[row, column] for column in self.columns}
    return {column: cell.value for column, cell in cells.items() if cell}

  def column(self, column: str) -> dict[str, float | str]:
    """Returns row -> value, without the dashes."""
    cells = {row: self[row, column] for row in self.rows}
    return {row: cell.value for row, cell in cells.items() if cell}


def read_value(text: str) -> Value | None:
  """Reads a cell as it is printed.

  Args:
    text: a number, possibly with a standard deviation (`88.55±0.04`) or a unit
      (`2.5k`, `86M`); a dash; or a setting in words.

  Returns:
    The value; None for a dash.
  """
  if text == '-':
    return None
  number = _NUMBER.fullmatch(text)
  if not number:
    return Value(text, printed=text)
  digits, std, unit = number.groups()
  # 12.3 * 1000 is not 12300 in binary.
  value = round(float(digits) * _THOUSANDS[unit], 9)
  return Value(value, float(std) if std else None, printed=text)


def read_table(
  name: str,
  title: str,
  columns: Sequence[str],
  rows: Sequence[str],
  special: Sequence[tuple[str, str, Mapping[str, Any]]] = (),
) -> Printed:
  """Reads a table that is written as in the paper.

  Args:
    name: of the table. This and the following are attributes of `Printed`.
    title: what it is about.
    columns: their labels.
    rows: of each its label and its cells, with two or more spaces between them.
    special: row, column, and attributes of the value that differ from what is
      read from the row.

  Raises:
    ValueError: a row has more or fewer cells than there are columns.
    KeyError: `special` names a cell that the table does not have.
  """
  cells, labels = {}, []
  for line in rows:
    row, *texts = re.split(r' {2,}', line)
    labels.append(row)
    for column, cell_text in zip(columns, texts, strict=True):
      if cell := read_value(cell_text):
        cells[row, column] = cell
  for row, column, changed in special:
    cells[row, column] = dataclasses.replace(cells[row, column], **changed)
  return Printed(name, title, (*labels,), (*columns,), cells)


def printed(name: str) -> Printed:
  """Returns a table of the paper; KeyError if there is none of that name."""
  path = pathlib.Path(__file__).with_name('printed.json')
  return read_table(name, **json.loads(path.read_text())[name])


def average5(row: Mapping[str, float]) -> float:
  """Returns Figure 5's Average-5, in the unit of the accuracies.

  Args:
    row: data set -> accuracy; others than those of `AVERAGE5` do not count.
  """
  return statistics.fmean(row[name] for name in AVERAGE5)
