"""Tables 2 and 5 to 8 as items: which runs, and what follows from them."""

import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper import claims, computed, numbers, values
from vit_jax.paper.item import Item
from vit_jax.paper.report import Cell, Claim, Number, Section, Table
from vit_jax.paper.runs import Node, Pretraining, Results, Transfer

# Models of Tables 2 and 5 that have 14 epochs of JFT-300M, not 7 (Table 3).
_LONG = ('ViT-L/16', 'ViT-H/14')
# Table 2's on ImageNet (B.1.1).
_RESOLUTION_2 = {'ViT-L/16': 512, 'ViT-H/14': 518}
# Table 8: row and column -> embedding and site, in the model's own words.
EMBEDDINGS = {'None': 'none', '1-D': '1d', '2-D': '2d', 'Relative': 'relative'}
SITES = {
  'Stem': 'stem',
  'Every layer': 'every_layer',
  'Every layer, shared': 'every_layer_shared',
}
# The paper does not say how many; the order is to be known with its spread.
_SEEDS_8 = 3

SEEN = (
  'From ImageNet to ImageNet, the rate is chosen on images that pre-training'
  ' has seen.'
)

Measure = Callable[[Results, str, str], Number | None]


def pretraining(model: str, data: str, epochs: float | None = None):
  """The run of Tables 2 and 5 of a model and a data set."""
  if data == values.JFT and epochs is None:
    epochs = 14 if model in _LONG else 7
  return Pretraining(model, data, epochs)


def _table_item(
  paper: values.Table,
  cells: Mapping[tuple[str, str], Node],
  *,
  others: Mapping[str, Measure] | None = None,
  follows: Mapping[str, computed.Computed] | None = None,
  digits: int = 2,
  measure: Callable[[Results, Node], Number | None],
  claim: Callable[[Table], Sequence[Claim]] | None = None,
  notes: Sequence[str] = (),
) -> Item:
  """An item that is a table of one run a cell.

  Args:
    paper: the printed table.
    cells: (row, column) -> what is measured there.
    others: row or column -> how its cells follow from others' runs.
    follows: row or column -> how its cells follow from the models alone. They
      are never missing, as there is nothing to run. What the paper's table does
      not have is one more column, where there is anything to show in it.
    digits: after the point.
    measure: the number of a node.
    claim: what the paper says of the table, and ours.
    notes: what a reader must know.
  """
  others, follows = others or {}, follows or {}
  added = [key for key in follows if key not in {*paper.rows, *paper.columns}]

  def cell(results: Results, row: str, column: str) -> Cell:
    printed = paper.cells.get((row, column))
    known = follows.get(row) or follows.get(column)
    if known:
      return Cell(known.of(results, row, column), printed, expected=False)
    node = cells.get((row, column))
    derived = others.get(row) or others.get(column)
    if derived:
      return Cell(derived(results, row, column), printed)
    ours = measure(results, node) if node else None
    return Cell(ours, printed, node is not None and results.has(node))

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    found = {
      (row, column): made
      for row in paper.rows
      for column in (*paper.columns, *added)
      if (made := cell(results, row, column)).ours or made.paper
    }
    shown = {
      key
      for key in follows
      for place, made in found.items()
      if key in place and made.ours
    }
    columns = (*paper.columns, *(key for key in added if key in shown))
    table = Table(paper.title, paper.rows, columns, found, digits)
    said = claim(table) if claim else ()
    told = [*notes, *(follows[key].note for key in follows if key in shown)]
    return Section(paper.name, paper.title, (table, *said), notes=told)

  return Item(paper.name, paper.title, tuple(cells.values()), render)


def _transfer(results: Results, node: Transfer) -> Number | None:
  return results.number([node], 'test/accuracy')


def average5(results: Results, start: Pretraining) -> Number | None:
  """The mean accuracy on five tasks (Figure 5, Table 7).

  Its values are those of the runs with the same place in their study's order:
  one for each seed.
  """
  found = [results.transfer(start, task) for task in numbers.AVERAGE5]
  if None in found or len({len(number.values) for number in found}) > 1:
    return None
  columns = zip(*(number.values for number in found), strict=True)
  runs = zip(*(number.runs for number in found), strict=True)
  return Number(
    tuple(statistics.fmean(column) for column in columns),
    tuple(' + '.join(names) for names in runs),
  )


def tasks(labels: Sequence[str]) -> list[str]:
  """Those that a model is fine-tuned on; ReaL is another test of ImageNet."""
  return [
    label
    for label in labels
    if label in (values.IMAGENET, values.CIFAR10, values.CIFAR100)
    or label in (values.PETS, values.FLOWERS)
  ]


def table2() -> Item:
  paper = numbers.TABLE_2
  columns = dict(zip(paper.columns, numbers.COLUMNS_2, strict=True))
  cells = {
    (task, column): Transfer(
      pretraining(*of),
      task,
      _RESOLUTION_2[of[0]] if task == values.IMAGENET else 384,
    )
    for column, of in columns.items()
    if of[0] in _RESOLUTION_2  # The others' numbers are from other papers.
    for task in tasks(paper.rows)
  }
  return _table_item(
    paper,
    cells,
    follows={
      computed.CORE_DAYS: computed.core_days(
        {
          column: pretraining(*of)
          for column, of in columns.items()
          if of[0] in _RESOLUTION_2
        }
      )
    },
    measure=_transfer,
    notes=['Not measured yet: ImageNet ReaL and VTAB.'],
  )


def table5() -> Item:
  paper = numbers.TABLE_5
  cells = {}
  for row, (data, task) in zip(paper.rows, numbers.ROWS_5, strict=True):
    for model in paper.columns:
      if paper[row, model] and tasks([task]):
        cells[row, model] = Transfer(pretraining(model, data), task)
  return _table_item(
    paper, cells, measure=_transfer, notes=[SEEN, 'Not measured yet: ReaL.']
  )


def table6() -> Item:
  paper = numbers.TABLE_6
  starts = {
    row: pretraining(model, values.JFT, epochs)
    for row, (model, epochs) in zip(paper.rows, numbers.ROWS_6, strict=True)
  }
  cells = {
    (row, task): Transfer(start, task)
    for row, start in starts.items()
    for task in tasks(paper.columns)
  }
  return _table_item(
    paper,
    cells,
    follows={
      'exaFLOPs': computed.exaflops(starts),
      computed.CORE_DAYS: computed.core_days(starts),
    },
    measure=_transfer,
    notes=['Not measured yet: ReaL.'],
  )


def table7() -> Item:
  paper = numbers.TABLE_7
  starts = {
    column: Pretraining(model, values.JFT, 7, optimizer.lower())
    for column, (model, optimizer) in zip(
      paper.columns, numbers.COLUMNS_7, strict=True
    )
  }
  cells = {
    (task, column): Transfer(start, task)
    for task in tasks(paper.rows)
    for column, start in starts.items()
  }
  return _table_item(
    paper,
    cells,
    others={
      'Average': lambda results, row, column: average5(results, starts[column])
    },
    measure=_transfer,
    claim=claims.adam_is_better,
  )


def table8() -> Item:
  paper = numbers.TABLE_8
  starts = {}
  for row in paper.rows:
    for column in paper.columns:
      if not paper[row, column]:
        continue
      options = {
        'model.position_embedding': EMBEDDINGS[row],
        'model.position_site': SITES[column],
      }
      default = (row, column) == ('1-D', 'Stem')
      starts[row, column] = [
        Pretraining(
          'ViT-B/16',
          values.JFT,
          7,
          options=() if default else tuple(options.items()),
          label='' if default else f'{row} position, {column.lower()}',
          seed=seed,
        )
        for seed in range(_SEEDS_8)
      ]

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    cells = {
      place: Cell(
        results.few_shot(nodes, scale=1.0),
        paper[place],
        all(map(results.has, nodes)),
      )
      for place, nodes in starts.items()
    }
    table = Table(paper.title, paper.rows, paper.columns, cells, digits=5)
    said = claims.positions_matter(table)
    return Section(paper.name, paper.title, (table, *said))

  nodes = tuple(node for nodes in starts.values() for node in nodes)
  return Item(paper.name, paper.title, nodes, render)
