"""The points of the figures of arXiv:2010.11929, as far as text gives them.

Figures 3 and 5 have their numbers in Tables 5 and 6, and some bars of Figure 2
in Tables 2 and 9. For Figure 13, we know between which ticks a label stands.
The points of the other curves are not known.
"""

import dataclasses

from vit_jax.paper.numbers.compute import AXIAL_COMPUTE, EXAFLOPS
from vit_jax.paper.numbers.means import average5, vtab_means
from vit_jax.paper.numbers.panels import AXIAL_SERIES, FAMILIES, VTAB_SERIES
from vit_jax.paper.numbers.result_tables import (
  ROWS_5,
  ROWS_6,
  TABLE_2,
  TABLE_5,
  TABLE_6,
  TABLE_9,
)
from vit_jax.paper.numbers.values import IMAGENET, VTAB, Point, Value

# Top-1 accuracy of Sup-Rotation-100% in VTAB's published results, over all
# tasks and by group, in percent. We guess that Figure 2 calls this model S4L.
_SUP_ROTATION = {
  **{VTAB: 68.0, 'natural': 73.6},
  **{'specialized': 83.1, 'structured': 55.5},
}
_SUP_ROTATION_NOTE = "approximate: VTAB's Sup-Rotation-100%, if that is S4L"
# Model of Figure 13 -> an accuracy at the height of its label, and the ticks
# around that.
_AXIAL_LABELS = {
  'ViT-B/32': (0.5625, 'between 0.55 and 0.575'),
  'ViT-B/16': (0.6375, 'between 0.625 and 0.65'),
  'Axial-ViT-B/32': (0.5875, 'between 0.575 and 0.6'),
  'Axial-ViT-B/16': (0.65, 'at least 0.65'),
  'AxialResNet50': (0.5625, 'between 0.55 and 0.575'),
  'BiT-R50x1': (0.5, 'about 0.5'),
}


def _figure2() -> tuple[Point, ...]:
  """Returns the bars; x is the panel's title."""
  vit, bit, vivi, s4l = VTAB_SERIES
  groups = vtab_means(TABLE_9.column(vit))
  del groups['mean']
  heights = [
    (vit, VTAB, dataclasses.replace(TABLE_2[VTAB, vit], note='Table 2')),
    *(
      (vit, group, Value(mean, note='derived from Table 9'))
      for group, mean in groups.items()
    ),
    (bit, VTAB, dataclasses.replace(TABLE_2[VTAB, bit], note='Table 2')),
    (vivi, VTAB, Value(70.5, note='from the BiT paper, arXiv:1912.11370')),
    *(
      (s4l, group, Value(height, note=_SUP_ROTATION_NOTE))
      for group, height in _SUP_ROTATION.items()
    ),
  ]
  return tuple(
    Point(series, title, y, panel=title) for series, title, y in heights
  )


def _figure3() -> tuple[Point, ...]:
  """Returns accuracies on ImageNet; x is the pre-training data."""
  return tuple(
    Point(model, data, dataclasses.replace(value, note='Table 5'))
    for (data, task), row in zip(ROWS_5, TABLE_5.rows, strict=True)
    for model in TABLE_5.columns
    if task == IMAGENET and (value := TABLE_5[row, model])
  )


def _figure5() -> tuple[Point, ...]:
  """Returns Table 6's 18 runs in each of two panels; x is in exaFLOPs."""
  vit, resnet, hybrid = FAMILIES
  points = []
  for (model, _), row in zip(ROWS_6, TABLE_6.rows, strict=True):
    family = {'ViT': vit, 'BiT': resnet, 'R50': hybrid}[model[:3]]
    average = Value(average5(TABLE_6.row(row)), note='derived from Table 6')
    accuracy = dataclasses.replace(TABLE_6[row, IMAGENET], note='Table 6')
    exaflops = EXAFLOPS[row]
    x_note = '; '.join(['Table 6', *filter(None, [exaflops.note])])
    for panel, y in (('Average-5', average), (IMAGENET, accuracy)):
      points.append(Point(family, exaflops.value, y, panel, row, x_note))
  return tuple(points)


def _figure13() -> tuple[Point, ...]:
  """Returns the left panel; x is in exaFLOPs, if known, and y a fraction."""
  points = []
  for model in AXIAL_SERIES:
    if model in AXIAL_COMPUTE.rows:
      x, x_note = AXIAL_COMPUTE[model, 'exaFLOPs'].value, 'derived'
    elif (row := f'{model}, 7 epochs') in EXAFLOPS:
      x, x_note = EXAFLOPS[row].value, 'Table 6'
    else:
      x, x_note = None, ''
    accuracy, where = _AXIAL_LABELS[model]
    y = Value(
      accuracy, note=f"approximate: {where}, by the order of the figure's text"
    )
    points.append(Point(model, x, y, 'left', x_note=x_note))
  return tuple(points)


# A figure is empty if none of its numbers is known, or if it shows pictures.
FIGURES = {f'figure{i}': () for i in range(1, 15)} | {
  'figure2': _figure2(),
  'figure3': _figure3(),
  'figure5': _figure5(),
  'figure13': _figure13(),
}
