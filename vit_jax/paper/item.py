"""The type of an item of the reproduction, and its usual kinds.

`of_means` and `table` show means over runs, `figure` draws marks. What these
take as `claims`, `cells` and `notes` is either a function or, where nothing
depends on its argument, what that would return.
"""

import dataclasses
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim, Mean
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


def _nothing(_: Any) -> Sequence:
  return ()


# What an item's section consists of; a text is a note.
Part = Block | Missing | str
# (row, column) -> what is shown there.
Cells = Mapping[tuple[str, str], Mean]
Notes = Callable[[Results], Sequence[str]] | Sequence[str]
Claims = Callable[[str], Sequence[Claim]] | Sequence[Claim]


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
    curves: whether it needs metrics from during its pre-trainings, to show or
      to choose a step by, instead of those of their end only.
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
  shown: Callable[[str], Sequence[Node]] = _nothing
  claims: Callable[[str], Sequence[Claim]] = _nothing
  notes: Callable[[Results], Sequence[str]] = _nothing
  curves: bool = False
  means: Callable[[str], Sequence[Mean]] = _nothing
  measure: Callable[[Results, pathlib.Path, str], None] | None = None
  measured: Callable[[str, pathlib.Path], tuple[int, int]] | None = None
  lacking: str = ''
  beyond: bool = False
  scales: tuple[str, ...] = SCALES

  def render(self, results: Results, pictures: pathlib.Path) -> Section:
    """Returns its section, without the answers to its claims."""
    found = [*self.blocks(results, pictures)]
    count = self.measured and self.measured(
      results.scale, pictures.parent / 'measured'
    )
    texts = [part for part in found if isinstance(part, str)]
    return Section(
      self.name,
      self.title,
      [part for part in found if not isinstance(part, str | Missing)],
      notes=[*self.notes(results), *texts],
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
    several = [
      *self.shown(scale),
      *(
        node
        for claim in self.asked(scale)
        for mean in claim.means()
        for node in mean.measure.nodes(mean.start)
      ),
    ]
    found = {
      with_start(node, start): None
      for node in several
      for start in start_of(node).seeds(counts.get(start_of(node), 1))
    }
    return [*found]


def _function(found: Any) -> Callable[[Any], Any]:
  """Returns a function of the scale or the results, which may be constant."""
  return found if callable(found) else lambda _: found


def cell(shown: Mean | None, printed: Value | None, results: Results) -> Cell:
  """Returns the cell of a table; None: only the paper has a number there."""
  if shown is None:
    return Cell(None, printed, expected=False)
  return Cell(shown.number(results), printed, shown.expected(results))


def of_means(
  name: str,
  title: str,
  cells: Callable[[str], Cells] | Cells,
  *,
  heading: str,
  paper: Mapping[str, Value] = types.MappingProxyType({}),
  claims: Claims = (),
  notes: Notes = (),
  more: Callable[
    [Results, pathlib.Path, Table], Iterable[Part]
  ] = lambda *_: (),
  extra: Sequence[Node] = (),
  curves: bool = False,
  beyond: bool = False,
) -> Item:
  """Makes an item that is a table of ours, which the paper does not print.

  Args:
    name: of the item. This and others are attributes of `Item`.
    title: of the item.
    cells: scale -> (row, column) -> what is shown.
    heading: what the numbers are.
    paper: row -> what the paper prints of it.
    claims: see `Item`.
    notes: see `Item`.
    more: returns further blocks, from `Item.blocks`' arguments and the table.
    extra: runs that it shows beside those of the table.
    curves: see `Item`.
    beyond: see `Item`.
  """
  cells = _function(cells)

  def blocks(results: Results, pictures: pathlib.Path) -> Iterable[Part]:
    shown = {
      place: cell(mean, paper.get(place[0]), results)
      for place, mean in cells(results.scale).items()
    }
    rows = [*dict.fromkeys(row for row, _ in shown)]
    columns = [*dict.fromkeys(column for _, column in shown)]
    yield (block := Table(heading, rows, columns, shown))
    yield from more(results, pictures, block)

  return Item(
    name,
    title,
    blocks,
    lambda scale: [*extra, *nodes_of(cells(scale))],
    _function(claims),
    _function(notes),
    curves,
    lambda scale: [*cells(scale).values()],
    beyond=beyond,
  )


def nodes_of(cells: Cells) -> list[Node]:
  """Returns the runs behind the cells of a table, each once."""
  found = {
    node: None
    for mean in cells.values()
    for node in mean.measure.nodes(mean.start)
  }
  return [*found]


def table(
  paper: Printed,
  cells: Callable[[str], Cells] | Cells,
  *,
  digits: int = 2,
  claims: Claims = (),
  notes: Notes = (),
  extra: Callable[[Results], Mapping[tuple[str, str], Cell]] = lambda _: {},
) -> Item:
  """Makes an item that is a table of the paper.

  Args:
    paper: the printed table.
    cells: scale -> (row, column) -> what we show there; other cells show only
      what is printed.
    digits: after the decimal point.
    claims: see `Item`.
    notes: see `Item`.
    extra: returns more cells; their labels become more rows, if they are no
      columns.
  """
  cells = _function(cells)

  def blocks(results: Results, pictures: pathlib.Path) -> Iterable[Part]:
    ours, more = cells(results.scale), extra(results)
    found = {
      place: cell(ours.get(place), paper.cells.get(place), results)
      for place in dict.fromkeys([*paper.cells, *ours])
    }
    yield Table(
      paper.title,
      [*dict.fromkeys([*paper.rows, *(row for row, _ in more)])],
      [*dict.fromkeys([*paper.columns, *(column for _, column in more)])],
      {
        place: one
        for place, one in (found | more).items()
        if one.ours or one.paper
      },
      digits,
    )

  return Item(
    paper.name,
    paper.title,
    blocks,
    lambda scale: nodes_of(cells(scale)),
    _function(claims),
    _function(notes),
  )


def figure(
  name: str,
  title: str,
  marks: Callable[[Results], Sequence[plots.Mark]],
  draw: Callable[[Sequence[plots.Mark], Results], Any],
  *,
  caption: Callable[[Results], str] | str,
  shown: Callable[[str], Sequence[Node]],
  claims: Claims = (),
  notes: Notes = (),
  curves: bool = False,
) -> Item:
  """Makes an item that is one drawn figure.

  Args:
    name: of the item. This and others are attributes of `Item`.
    title: of the item.
    marks: returns its points or bars.
    draw: returns the figure from its marks, by `plots.lines` or `plots.bars`.
    caption: what to look at, and what the paper found.
    shown: see `Item`.
    claims: see `Item`.
    notes: see `Item`.
    curves: see `Item`.
  """

  def blocks(results: Results, pictures: pathlib.Path) -> Iterable[Part]:
    found, below = marks(results), _function(caption)(results)
    drawn = draw(found, results)
    yield plots.save(name, title, below, drawn, found, pictures, results)

  return Item(
    name, title, blocks, shown, _function(claims), _function(notes), curves
  )
