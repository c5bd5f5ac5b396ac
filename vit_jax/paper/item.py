"""The type of an item of the reproduction, and its usual kinds.

`table` shows means over runs, `figure` draws points. What is given as `claims`,
`notes`, `miniature`, `cells`, `axes` or `caption` is either a function or,
where nothing depends on its argument, what that would return.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim, Mean, Measure
from vit_jax.paper.numbers import Printed, Value
from vit_jax.paper.report import Block, Cell, Missing, Section, Table
from vit_jax.paper.runs import (
  SCALES,
  Node,
  Pretraining,
  Results,
  start_of,
  with_start,
)

# What an item's section consists of; a text is a note.
Part = Block | Missing | str
# (row, column) -> what is shown there.
Cells = Mapping[tuple[str, str], Mean]


@dataclasses.dataclass(frozen=True)
class Item:
  """A table, a figure or a result of the paper.

  Attributes:
    name: such as `table5`.
    title: what it shows.
    blocks: returns what its section shows, from the results that exist; it
      writes pictures to the given folder, WORKDIR/figures. Texts among the
      blocks are notes. The answers to the claims follow.
    shown: scale -> the runs that it shows; of pre-trainings that differ only in
      their seed, the first.
    claims: scale -> the paper's claims about it.
    notes: returns what a reader must know.
    miniature: what a reader of another scale than the paper's must also know.
    curves: whether it shows metrics from during its pre-trainings, instead of
      those of their end only.
    means: scale -> means that it shows, beside those of its claims. What they
      need from weights is measured.
    measure: measures what no run does: `(results, folder, data)`, called after
      the runs with WORKDIR/measured; it continues where it ended. `data` is
      what `--NAME=PATH` gives, '' for most items.
    measured: returns how many measurements of `measure` are done, and how many
      there are: `(scale, folder)`.
    lacking: a sentence on the data that `--NAME=PATH` must give, for who has
      not. Without them, the item's runs are not made for it.
    beyond: whether the paper does not ask this. `all` leaves such items out.
    scales: those of `SCALES` at which it has runs.
  """

  name: str
  title: str
  blocks: Callable[[Results, pathlib.Path], Iterable[Part]]
  shown: Callable[[str], Sequence[Node]] = lambda scale: ()
  claims: Callable[[str], Sequence[Claim]] | Sequence[Claim] = ()
  notes: Callable[[Results], Sequence[str]] | Sequence[str] = ()
  miniature: Callable[[Results], Sequence[str]] | Sequence[str] = ()
  curves: bool = False
  means: Callable[[str], Sequence[Mean]] = lambda scale: ()
  measure: Callable[[Results, pathlib.Path, str], None] | None = None
  measured: Callable[[str, pathlib.Path], tuple[int, int]] | None = None
  lacking: str = ''
  beyond: bool = False
  scales: tuple[str, ...] = SCALES

  def __post_init__(self):
    for field in ('claims', 'notes', 'miniature'):
      object.__setattr__(self, field, function(getattr(self, field)))

  def render(self, results: Results, pictures: pathlib.Path) -> Section:
    """Returns its section, without the answers to its claims."""
    found = [*self.blocks(results, pictures)]
    count = self.measured and self.measured(
      results.scale, pictures.parent / 'measured'
    )
    notes = [*self.notes(results)]
    if not results.comparable:
      notes += self.miniature(results)
    notes += [part for part in found if isinstance(part, str)]
    return Section(
      self.name,
      self.title,
      [part for part in found if not isinstance(part, str | Missing)],
      notes=notes,
      measured=count,
      missing=[part.text for part in found if isinstance(part, Missing)],
    )

  def asked(self, scale: str) -> list[Claim]:
    """Returns its claims but those that a miniature cannot show."""
    return [
      claim
      for claim in self.claims(scale)
      if not (scale == 'mini' and claim.not_in_miniature)
    ]

  def counts(self, scale: str, seeds: int) -> dict[Pretraining, int]:
    """Returns the first pre-trainings of its claims -> the number of seeds.

    There is one seed of all others.
    """
    return {
      mean.start: seeds for claim in self.asked(scale) for mean in claim.means()
    }

  def nodes(self, scale: str, seeds: int) -> list[Node]:
    """Returns its runs: what it shows, and what its claims need."""
    if scale not in self.scales:
      return []
    counts = self.counts(scale, seeds)
    several = [*self.shown(scale)]
    for claim in self.asked(scale):
      several += nodes_of(claim.means())
    found = {
      with_start(node, start): None
      for node in several
      for start in start_of(node).seeds(counts.get(start_of(node), 1))
    }
    return [*found]


def function(found: Any) -> Callable[[Any], Any]:
  """Returns a function of the scale or the results, which may be constant."""
  return found if callable(found) else lambda _: found


def grid(rows: Mapping[str, Any], columns: Mapping[str, Measure]) -> Cells:
  """Returns each column's measure of each row's pre-training."""
  return {
    (row, column): measure(start)
    for row, start in rows.items()
    for column, measure in columns.items()
  }


def nodes_of(means: Iterable[Mean]) -> list[Node]:
  """Returns the runs behind means, each once."""
  found = {
    node: None for mean in means for node in mean.measure.nodes(mean.start)
  }
  return [*found]


def table(
  name: str,
  title: str,
  cells: Callable[[str], Cells] | Cells,
  *,
  heading: str = '',
  paper: Mapping[tuple[str, str], Value] | None = None,
  digits: int = 2,
  computed: Callable[[Results], Mapping[tuple[str, str], Cell]] = lambda _: {},
  more: Callable[[Results, pathlib.Path], Iterable[Part]] = lambda *_: (),
  **options: Any,
) -> Item:
  """Makes an item that is a table of means over runs.

  Rows and columns are in the order of their first cells, the paper's first.

  Args:
    name: of the item. This and others are attributes of `Item`.
    title: of the item.
    cells: scale -> (row, column) -> what we show there; see `grid`.
    heading: what the numbers are; '': as the title says.
    paper: (row, column) -> what the paper prints; None: nothing.
    digits: after the decimal point.
    computed: returns cells that follow without runs.
    more: returns further blocks, as `Item.blocks`.
    **options: further attributes of `Item`.
  """
  cells, paper = function(cells), paper or {}

  def blocks(results: Results, pictures: pathlib.Path) -> Iterable[Part]:
    found = {place: Cell(None, paper[place], expected=False) for place in paper}
    for place, mean in cells(results.scale).items():
      number, expected = mean.number(results), mean.expected(results)
      found[place] = Cell(number, paper.get(place), expected)
    found |= computed(results)
    rows, columns = (dict.fromkeys(place[i] for place in found) for i in (0, 1))
    yield Table(heading or title, [*rows], [*columns], found, digits)
    yield from more(results, pictures)

  return Item(
    name,
    title,
    blocks,
    lambda scale: nodes_of(cells(scale).values()),
    means=lambda scale: [*cells(scale).values()],
    **options,
  )


def of_paper(paper: Printed, cells: Any, **options: Any) -> Item:
  """Makes an item that is a table of the paper; see `table`."""
  return table(paper.name, paper.title, cells, paper=paper.cells, **options)


def figure(
  name: str,
  title: str,
  points: Callable[[Results], Iterable[Sequence[Any]]],
  axes: Callable[[Results], Mapping[str, Any]] | Mapping[str, Any],
  *,
  caption: Callable[[Results], str] | str,
  **options: Any,
) -> Item:
  """Makes an item that is one drawn figure.

  Args:
    name: of the item. This and others are attributes of `Item`.
    title: of the item.
    points: returns its points, see `plots.frame`.
    axes: how they are drawn, see `plots.draw`.
    caption: what to look at, and what the paper found.
    **options: further attributes of `Item`.
  """

  def blocks(results: Results, pictures: pathlib.Path) -> Iterable[Part]:
    yield plots.picture(
      *(name, title, function(caption)(results), points(results)),
      *(pictures, results),
      **function(axes)(results),
    )

  return Item(name, title, blocks, **options)
