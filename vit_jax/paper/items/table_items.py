"""Tables 2 and 5 to 8 as items: which runs, and what follows from them."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper import averages, numbers
from vit_jax.paper.claims import table_claims
from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.items import asked, computed
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Cell, Section, Table
from vit_jax.paper.runs import (
  Node,
  Pretraining,
  Results,
  pretraining,
)

# The resolution of fine-tuning on ImageNet in Table 2 (B.1.1).
RESOLUTION_2 = {'ViT-L/16': 512, 'ViT-H/14': 518}
# The column whose days the text gives (4.2).
_DAYS_2 = 'ViT-L/16, ImageNet-21k'
_SEEN = (
  'The learning rate of fine-tuning is chosen on validation images, which are'
  ' a part of the training images. A model that was pre-trained on ImageNet has'
  ' already seen these images of ImageNet.'
)

_LARGE_RESNET = (
  'The paper took the numbers of BiT-R152x4 from the BiT paper. We train'
  f' {table_claims.RESNET_2.model}, a large ResNet of the ViT paper, and'
  ' compare with it in the claim.'
)

# Our number of images differs from that in the paper's text.
_IMAGES_21K = (
  'We count 12.4 million images as one epoch of ImageNet-21k. The authors of'
  ' the paper give this number for their copy without duplicates. So 90 epochs'
  " are 272,460 steps. The paper's text gives 14 million images. Then, 90"
  ' epochs would be 308,000 steps.'
)

_MINI_8 = (
  'In the paper, these accuracies are on ImageNet. In miniature, each is the'
  ' mean over all few-shot data sets. We do not use only the data set that'
  ' stands for ImageNet, which would be unfair to relative position embeddings.'
  ' This data set asks where in the image a shape is. But relative position'
  ' embeddings encode only the offset between two patches. The models are'
  ' miniatures of ViT-B/32, pre-trained for 14 epochs, because miniatures of'
  ' ViT-B/16, pre-trained for 7 epochs, did not learn to use relative position'
  ' embeddings. Each attention head has its own relative position embeddings,'
  ' because accuracies then differ less from seed to seed. We chose the data'
  ' sets, the models and these embeddings after earlier runs. Those runs had'
  ' images of 32 px, and were tested only on the data set that stands for'
  ' ImageNet. They left the second claim undecided (LOG.md).'
)

# Labels with measured cells; other rows and columns are derived.
_TASKS = (*numbers.AVERAGE5, values.REAL)


def seen(results: Results) -> list[str]:
  """Returns a note on the choice of the rate; a miniature chooses none."""
  return [_SEEN] if results.comparable else []


def images_21k(results: Results) -> list[str]:
  """Returns a note on ImageNet-21k's number of images; none in miniature."""
  return [_IMAGES_21K] if results.comparable else []


def _table_item(
  paper: values.Table,
  cells: Mapping[tuple[str, str], asked.Asked],
  *,
  others: Mapping[str, Callable[[Results, str, str], Cell]] | None = None,
  follows: Mapping[str, computed.Computed] | None = None,
  more_rows: Sequence[str] = (),
  digits: int = 2,
  claims: Callable[[str], Sequence[Claim]] = lambda scale: (),
  notes: Callable[[Results], Sequence[str]] = lambda results: (),
  more: Sequence[Node] = (),
) -> Item:
  """Makes an item that is a table of measured cells.

  Args:
    paper: the printed table.
    cells: (row, column) -> what is measured there.
    others: row or column -> function (results, row, column) -> cell, for cells
      that are derived from several numbers.
    follows: row or column -> how its cells follow from the models alone. They
      are never missing, as there is nothing to run. A label that the paper's
      table does not have is one more column, if there is anything to show in
      it.
    more_rows: those of these labels that are one more row instead.
    digits: number of digits after the decimal point.
    claims: returns the paper's claims about the table at a scale.
    notes: returns what a reader must know.
    more: runs beside those of `cells`.
  """
  others, follows = others or {}, follows or {}
  known_labels = {*paper.rows, *paper.columns, *more_rows}
  more_columns = [key for key in follows if key not in known_labels]

  def cell(results: Results, row: str, column: str) -> Cell:
    printed = paper.cells.get((row, column))
    known = follows.get(row) or follows.get(column)
    if known:
      ours = known.of(results, row, column)
      return Cell(ours, printed or (ours and known.printed), expected=False)
    derived = others.get(row) or others.get(column)
    if derived:
      return derived(results, row, column)
    wanted = cells.get((row, column))
    if not wanted:
      return Cell(None, printed, expected=False)
    return Cell(wanted.number(results), printed, wanted.expected(results))

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    found = {
      (row, column): made
      for row in (*paper.rows, *more_rows)
      for column in (*paper.columns, *more_columns)
      if (made := cell(results, row, column)).ours or made.paper
    }
    shown = {
      key
      for key in follows
      for place, made in found.items()
      if key in place and made.ours
    }
    rows = (*paper.rows, *(key for key in more_rows if key in shown))
    columns = (*paper.columns, *(key for key in more_columns if key in shown))
    table = Table(paper.title, rows, columns, found, digits)
    all_notes = [
      *notes(results),
      *(follows[key].note for key in follows if key in shown),
    ]
    return Section(paper.name, paper.title, (table,), notes=all_notes)

  nodes = [wanted.node for wanted in cells.values()]
  # Runs on ImageNet measure ReaL too: each is listed once.
  return Item(
    paper.name,
    paper.title,
    tuple(dict.fromkeys([*nodes, *more])),
    render,
    claims=claims,
  )


def table2() -> Item:
  paper = numbers.TABLE_2
  # The numbers of the other columns are from other papers.
  starts = {
    column: pretraining(*of)
    for column, of in zip(paper.columns, numbers.COLUMNS_2, strict=True)
    if of[0] in RESOLUTION_2
  }

  def size(task: str, start: Pretraining) -> int:
    larger = task in (values.IMAGENET, values.REAL)
    return RESOLUTION_2[start.model] if larger else 384

  vtab = {
    column: averages.vtab_nodes(start) for column, start in starts.items()
  }

  def score(results: Results, row: str, column: str) -> Cell:
    printed = paper.cells.get((row, column))
    if column not in starts:
      return Cell(None, printed, expected=False)
    ours = averages.vtab(results, *results.seeds(starts[column]))['mean']
    return Cell(ours, printed, any(map(results.has, vtab[column])))

  def notes(results: Results) -> list[str]:
    vtab_notes = averages.vtab_notes(results, starts.values())
    return [
      *images_21k(results),
      _LARGE_RESNET,
      *asked.real_notes(results),
      *vtab_notes,
    ]

  return _table_item(
    paper,
    {
      (task, column): asked.of(task, start, size(task, start))
      for column, start in starts.items()
      for task in paper.rows
      if task in _TASKS
    },
    others={values.VTAB: score},
    follows={
      computed.CORE_DAYS: computed.core_days(starts),
      computed.DAYS: computed.days_on_8_cores(_DAYS_2, starts[_DAYS_2]),
    },
    more_rows=[computed.DAYS],
    claims=table_claims.table2,
    notes=notes,
    more=[node for nodes in vtab.values() for node in nodes],
  )


def table5() -> Item:
  paper = numbers.TABLE_5
  cells = {
    (row, model): asked.of(task, pretraining(model, data))
    for row, (data, task) in zip(paper.rows, numbers.ROWS_5, strict=True)
    for model in paper.columns
    if paper[row, model]
  }
  return _table_item(
    paper,
    cells,
    notes=lambda results: [
      *seen(results),
      *images_21k(results),
      'Before the colon is the data of the pre-training, after it the task.',
      *asked.real_notes(results),
    ],
  )


def table6() -> Item:
  paper = numbers.TABLE_6
  starts = {
    row: Pretraining(model, values.JFT, epochs)
    for row, (model, epochs) in zip(paper.rows, numbers.ROWS_6, strict=True)
  }
  cells = {
    (row, task): asked.of(task, start)
    for row, start in starts.items()
    for task in paper.columns
    if task in _TASKS
  }
  return _table_item(
    paper,
    cells,
    follows={
      'exaFLOPs': computed.exaflops(starts),
      computed.CORE_DAYS: computed.core_days(starts),
    },
    notes=asked.real_notes,
  )


def table7() -> Item:
  paper = numbers.TABLE_7
  starts = {
    column: Pretraining(model, values.JFT, 7, optimizer.lower())
    for column, (model, optimizer) in zip(
      paper.columns, numbers.COLUMNS_7, strict=True
    )
  }

  def average(results: Results, row: str, column: str) -> Cell:
    ours = averages.average5(results, *results.seeds(starts[column]))
    return Cell(ours, paper[row, column])

  return _table_item(
    paper,
    {
      (task, column): asked.of(task, start)
      for task in paper.rows
      if task in _TASKS
      for column, start in starts.items()
    },
    others={'Average': average},
    claims=table_claims.table7,
  )


def table8() -> Item:
  paper = numbers.TABLE_8
  # The runs at each scale; see _MINI_8.
  starts = {
    scale: {
      (row, column): table_claims.positions(scale, row, column)
      for row in paper.rows
      for column in paper.columns
      if paper[row, column]
    }
    for scale in ('paper', 'mini')
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    accuracy = results.average_few_shot
    if results.comparable:
      accuracy = results.few_shot
    cells = {
      place: Cell(
        accuracy(results.seeds(start), scale=1.0),
        paper[place],
        results.has(start),
      )
      for place, start in starts[results.structure].items()
    }
    table = Table(paper.title, paper.rows, paper.columns, cells, digits=5)
    notes = () if results.comparable else (_MINI_8,)
    return Section(paper.name, paper.title, (table,), notes=notes)

  return Item(
    paper.name,
    paper.title,
    tuple(starts['paper'].values()),
    render,
    claims=table_claims.table8,
    in_miniature=tuple(starts['mini'].values()),
  )
