"""VTAB as items: Table 9 has its tasks, Figure 2 their means by group.

The VTAB score in Table 2 is from the same runs, by `averages.vtab`.
"""

import pathlib
from collections.abc import Iterable

from vit_jax.pages import drawing
from vit_jax.paper import averages, numbers, plots
from vit_jax.paper.claims import table_claims
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.plots.bars import GROUPS
from vit_jax.paper.report import Cell, Picture, Section, Table
from vit_jax.paper.runs import Pretraining, Results, Vtab, pretraining

# A model of ours in Figure 2 -> its pre-training. The paper's BiT-R152x4 is
# from the BiT paper; a ResNet of the ViT paper is in its place. VIVI and S4L
# are also the work of others.
_BARS = {
  'ViT-H/14, JFT-300M': pretraining('ViT-H/14', values.JFT),
  f'{table_claims.RESNET_2.model}, JFT-300M': table_claims.RESNET_2,
}
# Panel of Figure 2 -> key of `averages.vtab`.
_PANELS = {
  title: 'mean' if group == values.VTAB else group
  for title, group in GROUPS.items()
}


def table9() -> Item:
  """Accuracy by task (Appendix D.10)."""
  paper = numbers.TABLE_9
  starts = {
    column: pretraining(*of)
    for column, of in zip(paper.columns, numbers.COLUMNS_9, strict=True)
  }

  def render(results: Results, pictures: pathlib.Path) -> Section:
    del pictures
    cells = {}
    for column, start in starts.items():
      nodes = averages.vtab_nodes(start)
      for node in nodes:
        cells[node.task, column] = Cell(
          results.number([node], averages.ACCURACY),
          paper[node.task, column],
          results.has(node),
        )
      cells['Mean', column] = Cell(
        averages.vtab(results, *results.seeds(start))['mean'],
        paper['Mean', column],
        any(map(results.has, nodes)),
      )
    table = Table(paper.title, paper.rows, paper.columns, cells, digits=1)
    notes = table_items.images_21k(results)
    notes += averages.vtab_notes(results, starts.values())
    return Section(paper.name, paper.title, (table,), notes=notes)

  return Item(paper.name, paper.title, _nodes(starts.values()), render)


def figure2() -> Item:
  """VTAB's score, and its parts by group (Section 4.2)."""
  title = 'VTAB by group of tasks'

  def render(results: Results, pictures: pathlib.Path) -> Section:
    bars = {}
    for model, start in _BARS.items():
      found = averages.vtab(results, *results.seeds(start))
      row = {
        panel: found[name] for panel, name in _PANELS.items() if found[name]
      }
      if row:
        bars[model] = row
    paper = numbers.FIGURES['figure2']
    drawing.save(
      plots.figure2(
        bars, paper, overlay=results.comparable, titles=_titles(results)
      ),
      pictures / 'figure2',
      plots.figure2_rows(bars, paper),
      mark=results.mark,
    )
    caption = (
      "The paper's finding: ViT-H/14 is ahead of BiT-R152x4 and of all other"
      ' models on the mean of all tasks. The same holds for the mean of Natural'
      ' tasks, and for that of Structured tasks. On Specialized tasks, ViT-H/14'
      ' and BiT-R152x4 are similar. The paper took the numbers of BiT-R152x4'
      f' from the BiT paper. Here we train {table_claims.RESNET_2.model}'
      ' instead, a large ResNet of the ViT paper.'
    )
    picture = Picture(title, f'{pictures.name}/figure2', caption)
    notes = averages.vtab_notes(results, _BARS.values())
    return Section('figure2', title, (picture,), notes=notes)

  return Item(
    'figure2',
    title,
    _nodes(_BARS.values()),
    render,
    claims=table_claims.figure2,
  )


def _nodes(starts: Iterable[Pretraining]) -> tuple[Vtab, ...]:
  return tuple(node for start in starts for node in averages.vtab_nodes(start))


def _titles(results: Results) -> dict[str, str]:
  """Returns panel -> title; the first panel's has the number of tasks."""
  total, *_ = GROUPS
  # In miniature, all models have the same tasks.
  groups = averages.vtab_tasks(results, pretraining('ViT-H/14', values.JFT))
  return {total: f'VTAB ({sum(map(len, groups.values()))} tasks)'}
