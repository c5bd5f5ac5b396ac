"""The types of the paper's numbers: values, tables, points of figures."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
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


@dataclasses.dataclass(frozen=True)
class Table:
  """A table, row by row.

  Attributes:
    name: such as `table5`.
    title: what it is about.
    source: where it is from.
    rows: labels, in the paper's order and with our names of the models.
    columns: labels, likewise.
    cells: (row, column) -> value; cells with a printed dash are absent.
    printed: our labels of rows and columns -> the paper's, where they differ.
  """

  name: str
  title: str
  source: str
  rows: tuple[str, ...]
  columns: tuple[str, ...]
  cells: Mapping[tuple[str, str], Value]
  printed: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def __getitem__(self, row_column: tuple[str, str]) -> Value | None:
    """Returns the cell of (row, column), None if a dash is printed there.

    Raises:
      ValueError: there is no such row or column; lists the existing ones.
    """
    row, column = row_column
    self._check('row', row, self.rows)
    self._check('column', column, self.columns)
    return self.cells.get((row, column))

  def row(self, row: str) -> dict[str, float | str]:
    """Returns column -> value, without the dashes; raises as `[]` does."""
    self._check('row', row, self.rows)
    cells = ((column, self.cells.get((row, column))) for column in self.columns)
    return {column: cell.value for column, cell in cells if cell}

  def column(self, column: str) -> dict[str, float | str]:
    """Returns row -> value, without the dashes; raises as `[]` does."""
    self._check('column', column, self.columns)
    cells = ((row, self.cells.get((row, column))) for row in self.rows)
    return {row: cell.value for row, cell in cells if cell}

  def _check(self, kind: str, label: str, labels: Collection[str]) -> None:
    if label not in labels:
      raise ValueError(
        f'{self.name} has no {kind} {label!r}; it has {", ".join(labels)}.'
      )


@dataclasses.dataclass(frozen=True)
class Point:
  """A point or a bar of a figure.

  Attributes:
    series: what the legend says: a model or a kind of models.
    x: where it is; None if that cannot be read.
    y: its height; the note of the value says where the height is from.
    panel: title of the panel, in figures with several.
    label: the run, if each point of the series has its own.
    x_note: where x is from, if it is a number.
  """

  series: str
  x: float | str | None
  y: Value
  panel: str = ''
  label: str = ''
  x_note: str = ''


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
  source: str,
  columns: Sequence[str],
  text: str,
  *,
  printed: Mapping[str, str] | None = None,
  special: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
) -> Table:
  """Reads a table that is written as in the paper.

  Args:
    name: of the table. This and the following are attributes of `Table`.
    title: what it is about.
    source: where it is from.
    columns: their labels.
    text: a line for each row: its label and its cells, with two or more spaces
      between them.
    printed: our labels -> the paper's.
    special: (row, column) -> attributes of the value that differ from what is
      read from the text.

  Raises:
    ValueError: a row has more or fewer cells than there are columns, a label
      occurs twice, or `printed` or `special` name a label or cell that the
      table does not have.
  """
  special, printed = dict(special or {}), dict(printed or {})
  rows, cells = [], {}
  for line in text.strip().split('\n'):
    row, *texts = re.split(r' {2,}', line.strip())
    if len(texts) != len(columns):
      raise ValueError(
        f'{name}: row {row!r} has {len(texts)} cells, expected {len(columns)}.'
      )
    rows.append(row)
    for column, cell_text in zip(columns, texts, strict=True):
      cell = read_value(cell_text)
      if cell:
        attributes = special.pop((row, column), {})
        cells[row, column] = dataclasses.replace(cell, **attributes)
  if len({*rows}) < len(rows) or len({*columns}) < len(columns):
    raise ValueError(f'{name}: a label occurs twice: {rows}, {columns}.')
  nowhere = [*special, *({*printed} - {*rows, *columns})]
  if nowhere:
    raise ValueError(
      f'{name}: `printed` or `special` name {nowhere}, which is not in it.'
    )
  return Table(name, title, source, (*rows,), (*columns,), cells, printed)
