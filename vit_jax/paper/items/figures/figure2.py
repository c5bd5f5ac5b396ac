"""Figure 2: VTAB over all tasks and by group (Section 4.2)."""

import statistics
from collections.abc import Iterator
from typing import Any

from vit_jax.paper.claims import Claim, Sum, vtab
from vit_jax.paper.item import figure
from vit_jax.paper.items.tables import table2, table9
from vit_jax.paper.items.tables.table2 import HUGE, RESNET
from vit_jax.paper.numbers import VTAB, Value
from vit_jax.paper.runs import Results, vtab_nodes
from vit_jax.vtab import tasks

# A model of ours -> its pre-training. The paper's BiT-R152x4 is from the BiT
# paper. VIVI and S4L are also the work of others.
_VIT, _BIT = 'ViT-H/14, JFT-300M', 'BiT-R152x4, JFT-300M'
_STARTS = {_VIT: HUGE, _BIT: RESNET}
# Which tasks, see `tasks.titles` -> title of its panel.
_GROUPS = {
  'mean': 'VTAB (19 tasks)',
  **{group: group.capitalize() for group in tasks.GROUPS},
}
# Top-1 accuracy of Sup-Rotation-100% in VTAB's published results, over all
# tasks and by group, in percent. We guess that Figure 2 calls this model S4L.
_S4L = {'mean': 68.0, 'natural': 73.6, 'specialized': 83.1, 'structured': 55.5}
_S4L_NOTE = "approximate: VTAB's Sup-Rotation-100%, if that is S4L"
_TABLE9 = table9.PAPER.column(_VIT)
# Model, group -> the paper's number, as far as it is known.
_PRINTED = {
  (_VIT, 'mean'): table2.PAPER[VTAB, _VIT].noted('Table 2'),
  **{
    (_VIT, group): Value(
      statistics.fmean(_TABLE9[title] for title in tasks.titles(group)),
      note='derived from Table 9',
    )
    for group in tasks.GROUPS
  },
  (_BIT, 'mean'): table2.PAPER[VTAB, _BIT].noted('Table 2'),
  ('VIVI-Ex-100%, R50x3', 'mean'): Value(
    70.5, note='from the BiT paper, arXiv:1912.11370'
  ),
  **{
    ('S4L, R50x1', group): Value(number, note=_S4L_NOTE)
    for group, number in _S4L.items()
  },
}


def _points(results: Results) -> Iterator[tuple]:
  ours = {
    (model, group): vtab(group)(start).number(results)
    for model, start in _STARTS.items()
    for group in _GROUPS
  }
  for (model, group), found in (*ours.items(), *_PRINTED.items()):
    yield model, _GROUPS[group], found, _GROUPS[group]


def _lead(group: str) -> Sum:
  return vtab(group)(HUGE) - vtab(group)(RESNET)


_CLAIMS = [
  Claim(
    'groups',
    'ViT-H/14 is ahead of a large ResNet on the Natural and on the'
    ' Structured tasks of VTAB (4.2, Figure 2).',
    {f'lead on {g} tasks': _lead(g) for g in ('natural', 'structured')},
  ),
  Claim(
    'specialized',
    'On the Specialized tasks of VTAB, ViT-H/14 and a large ResNet are'
    ' similar: the lead of ViT-H/14 is smaller there than on average over'
    ' Natural and Structured tasks (4.2, Figure 2).',
    {
      'mean lead on Natural and Structured tasks, minus that on'
      ' Specialized ones': 0.5 * (_lead('natural') + _lead('structured'))
      - _lead('specialized')
    },
    not_in_miniature=(
      'In miniature, the data set that stands for Specialized tasks asks for'
      ' the size of a shape, as some of the others do.'
    ),
  ),
]


def _axes(results: Results) -> dict[str, Any]:
  panels = {title: title for title in _GROUPS.values()}
  tasks = [
    node for node in vtab_nodes(HUGE) if results.comparable or results.has(node)
  ]
  panels[_GROUPS['mean']] = f'VTAB ({len(tasks)} tasks)'
  return {
    **{'panels': panels, 'y_label': 'Accuracy (%)', 'series': [*_STARTS]},
    **{'scatter': True, 'abreast': True},
  }


ITEM = figure(
  'figure2',
  'VTAB by group of tasks',
  _points,
  _axes,
  caption='The paper took the numbers of BiT-R152x4 from the BiT paper. Ours is'
  ' trained like the other ResNets of the ViT paper.',
  shown=lambda scale: [n for of in _STARTS.values() for n in vtab_nodes(of)],
  claims=_CLAIMS,
  miniature=[table2.VTAB_IN_MINIATURE],
)
