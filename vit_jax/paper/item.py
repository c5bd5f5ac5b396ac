"""The type of an item of the reproduction, and how tables become items."""

import dataclasses
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper.claims import Claim, Mean
from vit_jax.paper.numbers import Printed, Value
from vit_jax.paper.report import Cell, Number, Section, Table
from vit_jax.paper.runs import (
  SCALES,
  Node,
  Pretraining,
  Results,
  start_of,
  with_start,
)


def _nothing(scale: str) -> Sequence:
  del scale
  return ()


@dataclasses.dataclass(frozen=True)
class Item:
  """A table, a figure or a result of the paper.

  Attributes:
    name: such as `table5`.
    title: what it shows.
    render: returns its section from the results that exist; it writes pictures
      to the given folder, WORKDIR/figures. The answers to the claims follow.
    shown: scale -> the runs that it shows; of pre-trainings that differ only in
      their seed, the first.
    claims: scale -> the paper's claims about it.
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
  render: Callable[[Results, pathlib.Path], Section]
  shown: Callable[[str], Sequence[Node]] = _nothing
  claims: Callable[[str], Sequence[Claim]] = _nothing
  curves: bool = False
  means: Callable[[str], Sequence[Mean]] = _nothing
  measure: Callable[[Results, pathlib.Path, str], None] | None = None
  measured: Callable[[str, pathlib.Path], tuple[int, int]] | None = None
  lacking: str = ''
  beyond: bool = False
  scales: tuple[str, ...] = SCALES

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


# What a table shows in a cell: a mean over runs; or a number that follows from
# the model alone and is never missing; or None.
Shown = Mean | Callable[[Results], Number | None] | None


def cell(shown: Shown, printed: Value | None, results: Results) -> Cell:
  """Returns the cell of a table."""
  if isinstance(shown, Mean):
    return Cell(shown.number(results), printed, shown.expected(results))
  return Cell(shown and shown(results), printed, expected=False)


def of_means(
  name: str,
  title: str,
  cells: Callable[[str], Mapping[tuple[str, str], Mean]],
  *,
  heading: str,
  paper: Mapping[str, Value] = types.MappingProxyType({}),
  claims: Callable[[str], Sequence[Claim]] = _nothing,
  notes: Callable[[Results], Sequence[str]] = _nothing,
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
    notes: returns what a reader must know.
    curves: see `Item`.
    beyond: see `Item`.
  """

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    shown = {
      place: cell(mean, paper.get(place[0]), results)
      for place, mean in cells(results.scale).items()
    }
    rows = [*dict.fromkeys(row for row, _ in shown)]
    columns = [*dict.fromkeys(column for _, column in shown)]
    block = Table(heading, rows, columns, shown)
    return Section(name, title, (block,), notes=notes(results))

  return Item(
    name,
    title,
    render,
    lambda scale: nodes_of(cells(scale)),
    claims,
    curves,
    lambda scale: [*cells(scale).values()],
    beyond=beyond,
  )


def nodes_of(cells: Mapping[tuple[str, str], Shown]) -> list[Node]:
  """Returns the runs behind the cells of a table, each once."""
  found = {
    node: None
    for mean in cells.values()
    if isinstance(mean, Mean)
    for node in mean.measure.nodes(mean.start)
  }
  return [*found]


def table(
  paper: Printed,
  cells: Mapping[tuple[str, str], Shown],
  *,
  claims: Callable[[str], Sequence[Claim]] = _nothing,
  notes: Callable[[Results], Sequence[str]] = _nothing,
  extra: Callable[[Results], Mapping[tuple[str, str], Cell]] | None = None,
) -> Item:
  """Makes an item that is a table of the paper.

  Args:
    paper: the printed table.
    cells: (row, column) -> what we show there; other cells show only what is
      printed.
    claims: see `Item`.
    notes: returns what a reader must know.
    extra: returns more cells; their labels become more rows, if they are no
      columns.
  """

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    places = dict.fromkeys([*paper.cells, *cells])
    found = {
      place: cell(cells.get(place), paper.cells.get(place), results)
      for place in places
    }
    more = dict(extra(results)) if extra else {}
    rows = [*dict.fromkeys([*paper.rows, *(row for row, _ in more)])]
    columns = [*dict.fromkeys([*paper.columns, *(c for _, c in more)])]
    shown = {
      place: one
      for place, one in (found | more).items()
      if one.ours or one.paper
    }
    block = Table(paper.title, rows, columns, shown)
    return Section(paper.name, paper.title, (block,), notes=notes(results))

  return Item(
    paper.name, paper.title, render, lambda scale: nodes_of(cells), claims
  )
