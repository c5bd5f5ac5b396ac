"""The contents of a section of the reproduction, before it is printed.

A section shows an item: a table or a figure of the paper. Our numbers come only
from the files of the runs. A missing number is None here, and pages show it as
missing. Settings come from the code, so they are never missing.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from vit_jax.paper.numbers import Value

# What titles and pictures say whose numbers are not from the paper's own models
# and data.
MINIATURE = 'MINIATURE'


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of ours: a mean over runs that differ only in their seed.

  Attributes:
    values: one for each run, in the unit that the paper prints.
    runs: the names of the runs, in the same order.
  """

  values: tuple[float, ...]
  runs: tuple[str, ...]

  @property
  def mean(self) -> float:
    return statistics.fmean(self.values)

  @property
  def std(self) -> float | None:
    """The sample standard deviation; None for a single run."""
    return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True)
class Cell:
  """A cell of a table.

  Attributes:
    ours: None while a run is missing.
    paper: None where the paper prints nothing.
    expected: whether we measure this cell at all.
  """

  ours: Number | None = None
  paper: Value | None = None
  expected: bool = True

  @property
  def difference(self) -> float | None:
    """Ours minus the paper's; None unless both are numbers."""
    if self.ours is None or self.paper is None:
      return None
    if isinstance(self.paper.value, str):
      return None
    return self.ours.mean - self.paper.value


@dataclasses.dataclass(frozen=True)
class Setting:
  """A cell with a setting, in words or as a number.

  Attributes:
    ours: the setting in our code.
    paper: the setting as printed.
    accepted: whether ours agrees although it is written differently: 7 agrees
      with the 7/14 epochs of the paper.
  """

  ours: float | str
  paper: Value
  accepted: bool = False

  @property
  def same(self) -> bool:
    """Whether both are the same number or the same text."""
    return self.ours == self.paper.value

  @property
  def agrees(self) -> bool:
    return self.same or self.accepted


@dataclasses.dataclass(frozen=True)
class Table:
  """A table with our numbers, or settings of the code, beside the paper's.

  Attributes:
    title: what it shows.
    rows: labels, in order.
    columns: labels, in order.
    cells: (row, column) -> cell; cells that the paper leaves empty are absent.
      All are settings, or none is.
    digits: number of digits after the decimal point.
    comparable: whether our numbers come from the paper's own data and models;
      otherwise differences mean nothing.
  """

  title: str
  rows: Sequence[str]
  columns: Sequence[str]
  cells: Mapping[tuple[str, str], Cell | Setting]
  digits: int = 2
  comparable: bool = True

  @property
  def of_settings(self) -> bool:
    """Whether it shows settings, which are read from the code without runs."""
    return any(isinstance(cell, Setting) for cell in self.cells.values())


@dataclasses.dataclass(frozen=True)
class Picture:
  """A drawn figure.

  Attributes:
    title: what it shows.
    stem: its files are STEM.png, STEM.pdf and STEM.csv, relative to the page.
    caption: what to look at, and what the paper found.
  """

  title: str
  stem: str
  caption: str


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of the paper, and the answer that our runs give.

  Attributes:
    statement: the paper's statement in our words, with its section.
    answer: 'yes', 'no', 'undecided' or 'missing'; of a single run, 'seen once'
      or 'not seen' in place of 'yes' and 'no'; 'not in miniature' if it is not
      asked there.
    evidence: sentences with the numbers behind the answer, and their spread.
  """

  statement: str
  answer: str
  evidence: str


@dataclasses.dataclass(frozen=True)
class Run:
  """A run behind an item.

  Attributes:
    name: its folder below WORKDIR/runs.
    config: `FILE:ARGUMENT`, and the keys that are set otherwise.
    finished: whether the run has finished.
    hours: device hours that it took; None if unknown.
    commit: of the code that ran, with `+` if that had local changes; several
      commits if the run resumed with another one; '' if unknown.
    certificate: the path of its certificate from the page; '' for none.
  """

  name: str
  config: str
  finished: bool
  hours: float | None = None
  commit: str = ''
  certificate: str = ''


@dataclasses.dataclass(frozen=True)
class Listing:
  """A plain table of texts, such as of what stands for what in miniature.

  Attributes:
    columns: labels.
    rows: the texts of each row, as many as there are columns.
  """

  columns: Sequence[str]
  rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Missing:
  """What should be there but is not, and why."""

  text: str


Block = Table | Picture | Claim


@dataclasses.dataclass(frozen=True)
class Section:
  """One item, ready to be printed.

  Attributes:
    name: such as `table5`.
    title: what it is about.
    blocks: in the order in which they are shown.
    runs: all runs behind the item.
    notes: what a reader must know, such as what stands for what in miniature.
    measured: how many of the measurements outside of runs are done, and how
      many there are; None if the item has no such measurements.
    missing: what else should be there but is not, and why, such as a picture
      that could not be drawn. With an entry here, a section is not complete.
    folded: whether the page shows it only on demand, because nobody asked for
      it and it is not complete.
  """

  name: str
  title: str
  blocks: Sequence[Block] = ()
  runs: Sequence[Run] = ()
  notes: Sequence[str] = ()
  measured: tuple[int, int] | None = None
  missing: Sequence[str] = ()
  folded: bool = False
