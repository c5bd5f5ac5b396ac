"""What an item of the reproduction has to show, before it is drawn or printed.

An item is a table or a figure of the paper. Numbers of ours come from the runs'
own files only; one that is missing is None here and stays visibly missing.
Settings come from the code, which always has them.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from vit_jax.paper.numbers.values import Value


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of ours: a mean over runs that differ in their seed only.

  Attributes:
    values: one a run, in the unit that the paper prints.
    runs: the names of the runs, in the same order.
  """

  values: tuple[float, ...]
  runs: tuple[str, ...]

  def __post_init__(self):
    if not self.values or len(self.values) != len(self.runs):
      raise ValueError(f'{len(self.values)} values of {len(self.runs)} runs.')

  @property
  def mean(self) -> float:
    return statistics.fmean(self.values)

  @property
  def std(self) -> float | None:
    """The sample's standard deviation; None of a single run."""
    return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True)
class Cell:
  """A cell of a table.

  Attributes:
    ours: None while a run is missing.
    paper: None where the paper prints nothing.
    expected: whether ours is to be measured at all.
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
class Table:
  """A table of ours beside the paper's.

  Attributes:
    title: what it shows.
    rows: labels, in order.
    columns: labels, in order.
    cells: (row, column) -> cell; an absent one is empty in the paper too.
    digits: after the point.
    comparable: whether ours are of the paper's own data and models, so that a
      difference means something.
  """

  title: str
  rows: Sequence[str]
  columns: Sequence[str]
  cells: Mapping[tuple[str, str], Cell]
  digits: int = 2
  comparable: bool = True


@dataclasses.dataclass(frozen=True)
class Setting:
  """A cell that says how something is set, in words or as a number.

  Attributes:
    ours: as the code has it.
    paper: as it is printed.
    accepted: whether ours agrees although it is written in another way, as 7
      does where the paper's runs were of 7/14 epochs.
  """

  ours: float | str
  paper: Value
  accepted: bool = False

  @property
  def same(self) -> bool:
    """Whether the two are the same number, or word for word the same."""
    return self.ours == self.paper.value

  @property
  def agrees(self) -> bool:
    return self.same or self.accepted


@dataclasses.dataclass(frozen=True)
class Settings:
  """A table of how something is set, which the code says without any run.

  Attributes:
    title: what it shows.
    rows: labels, in order.
    columns: labels, in order.
    cells: (row, column) -> setting; an absent one is empty in the paper too.
  """

  title: str
  rows: Sequence[str]
  columns: Sequence[str]
  cells: Mapping[tuple[str, str], Setting]


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure that was drawn.

  Attributes:
    title: what it shows.
    stem: its files are STEM.png, STEM.pdf and STEM.csv, relative to the page.
    caption: what to look at, and what the paper saw.
  """

  title: str
  stem: str
  caption: str


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of the paper, and what our runs say to it.

  Attributes:
    statement: the paper's, in our words, with its place.
    answer: 'yes', 'no', 'not at this scale' or 'missing'.
    evidence: the numbers it rests on, with their spread, in a sentence.
  """

  statement: str
  answer: str
  evidence: str


@dataclasses.dataclass(frozen=True)
class Run:
  """A run behind an item.

  Attributes:
    name: its folder below WORKDIR/runs.
    config: `FILE:ARGUMENT`.
    finished: whether it is.
    hours: device hours that it took; None if unknown.
    commit: of the code that ran it, `+` if that was changed; several, if it was
      resumed with another one; '' if unknown.
  """

  name: str
  config: str
  finished: bool
  hours: float | None = None
  commit: str = ''


@dataclasses.dataclass(frozen=True)
class Section:
  """One item, ready to be printed.

  Attributes:
    name: such as `table5`.
    title: what it is about.
    blocks: in the order in which they are shown.
    runs: all behind it.
    notes: what a reader must know, such as what stands for what in miniature.
    measured: how many measurements that no run makes there are of how many;
      None: it has none.
    missing: what else is not there although it should be, and why, such as a
      picture that could not be drawn. With any of it nothing is complete.
  """

  name: str
  title: str
  blocks: Sequence[Table | Settings | Picture | Claim] = ()
  runs: Sequence[Run] = ()
  notes: Sequence[str] = ()
  measured: tuple[int, int] | None = None
  missing: Sequence[str] = ()
