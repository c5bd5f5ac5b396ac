"""Figure 12: inference speed and the largest batch, by image size."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.numbers.panels import PANELS
from vit_jax.paper.plots import chart, marks
from vit_jax.paper.report import Number

_SPEED, _BATCH = (panel.title for panel in PANELS['figure12'])
_X_LABEL = 'Input size (px)'


@drawing.styled
def figure12(
  measured: Mapping[tuple[str, int], tuple[float | None, int]],
  *,
  unit: str = 'core',
) -> Any:
  """Draws speed (left) and largest batch (right) by size; ResNets are dashed.

  Both axes are logarithmic, so models that do not fit the memory are not drawn.

  Args:
    measured: (model, side of the images in pixels) -> images per second in
      inference, and the largest batch. If not even one image fits, they are
      None and 0.
    unit: what both numbers refer to, such as 'core'.
  """
  found = _marks12(measured)
  series = marks.series_of(found)
  style = chart.styles(series)
  figure, panels = chart.panels(2, (chart.WIDE, 3.5))
  sizes = sorted({mark.x for mark in found})
  labels = (
    f'Peak speed (images/s/{unit})',
    f'Largest batch that fits a {unit}',
  )
  for axes, title, label in zip(panels, (_SPEED, _BATCH), labels, strict=True):
    mine = [mark for mark in found if mark.panel == title]
    chart.draw_series(axes, mine, (), style)
    if mine:
      axes.set_yscale('log')
      axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel(_X_LABEL)
    axes.set_ylabel(label)
    chart.say_if_empty(axes)
  chart.add_legend(figure, series, paper=False)
  return figure


def figure12_rows(
  measured: Mapping[tuple[str, int], tuple[float | None, int]],
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure12`."""
  return marks.rows(_marks12(measured))


def _marks12(
  measured: Mapping[tuple[str, int], tuple[float | None, int]],
) -> Sequence[marks.Mark]:
  return [
    marks.ours(model, size, Number((float(value),), ('',)), panel)
    for (model, size), values in measured.items()
    for panel, value in zip((_SPEED, _BATCH), values, strict=True)
    if value
  ]
