"""Figures 5, 8 and 13: accuracy over compute, and over speed."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.numbers.panels import FAMILIES as PAPERS_FAMILIES
from vit_jax.paper.numbers.panels import PANELS
from vit_jax.paper.numbers.values import Point
from vit_jax.paper.plots import chart, marks
from vit_jax.paper.report import Number

# The name of a family in the arguments of `figure5` -> in the legend.
FAMILIES = {
  'Transformer': 'Transformer (ViT)',
  'ResNet': 'ResNet (BiT)',
  'Hybrid': 'Hybrid',
}
# The dimensions that Figure 8 scales.
DIMENSIONS = PANELS['figure8'][0].series
_LEFT, _RIGHT = (panel.title for panel in PANELS['figure13'])


@drawing.styled
def figure5(
  points: Mapping[str, tuple[str, float, Mapping[str, Number]]],
  paper: Sequence[Point] = (),
  *,
  overlay: bool = True,
  x_label: str = 'Pre-training compute (exaFLOPs)',
) -> Any:
  """Draws accuracy after transfer over the compute of the pre-training.

  Args:
    points: run -> its family (a key of FAMILIES), exaFLOPs, and panel
      ('Average-5', 'ImageNet') -> accuracy in percent. If there are points in
      other panels, these replace both.
    paper: the paper's points.
    overlay: whether to draw the paper's points, in panels that exist.
    x_label: of the compute; without `paper` it may be in another unit.

  Raises:
    ValueError: a family is not in FAMILIES, which the message lists; or the
      compute is not more than 0.
  """
  found, shown = _marks5(points), _papers5(paper if overlay else ())
  style = {
    name: look | {'linestyle': 'none', 'markersize': 6}
    for name, look in chart.styles([*FAMILIES.values()]).items()
  }
  titles = marks.panels_of('figure5', found)
  size = _size(titles, 3.2)
  figure, panels = chart.panels(len(titles), size)
  _draw_panels(panels, titles, found, shown, style)
  for axes in panels:
    axes.set_xlabel(x_label)
  panels[0].set_ylabel('Transfer accuracy (%)')
  chart.add_legend(figure, style, _any_in(titles, shown))
  for axes, title in zip(panels, titles, strict=True):
    mine = [m for m in found if m.panel == title]
    if mine:
      chart.label_points(axes, mine, [_short(mark.label) for mark in mine])
  return figure


def _short(run: str) -> str:
  """Returns `L/16, 14 ep.` for `ViT-L/16, 14 epochs`; 7 epochs are usual."""
  name = run.replace('ViT-', '').removeprefix('BiT-')
  return name.removesuffix(', 7 epochs').replace(' epochs', ' ep.')


def figure5_rows(
  points: Mapping[str, tuple[str, float, Mapping[str, Number]]],
  paper: Sequence[Point] = (),
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure5`."""
  return marks.rows(_marks5(points), _papers5(paper))


@drawing.styled
def figure8(
  points: Mapping[tuple[str, float], Mapping[str, Number]],
  paper: Sequence[Point] = (),
  *,
  overlay: bool = True,
) -> Any:
  """Draws few-shot accuracy over relative compute, as a dimension is scaled.

  Args:
    points: (dimension of DIMENSIONS, compute relative to the base model) ->
      panel ('ImageNet 5shot', 'Average 5shot') -> accuracy as a fraction. If
      there are points in other panels, these replace both.
    paper: the paper's points.
    overlay: whether to draw the paper's points, in panels that exist.

  Raises:
    ValueError: a dimension is not in DIMENSIONS, which the message lists; or
      the compute is not more than 0.
  """
  found, shown = _marks8(points), marks.papers(paper if overlay else ())
  titles = marks.panels_of('figure8', found)
  figure, panels = chart.panels(len(titles), _size(titles, 3.2))
  # Styles of all dimensions, so that colours do not depend on which are there.
  _draw_panels(panels, titles, found, shown, chart.styles(DIMENSIONS))
  for axes in panels:
    axes.set_xlabel('Relative compute')
  panels[0].set_ylabel('Accuracy')
  chart.add_legend(figure, DIMENSIONS, _any_in(titles, shown))
  return figure


def figure8_rows(
  points: Mapping[tuple[str, float], Mapping[str, Number]],
  paper: Sequence[Point] = (),
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure8`."""
  return marks.rows(_marks8(points), marks.papers(paper))


@drawing.styled
def figure13(
  points: Mapping[str, tuple[float | None, float | None, Number]],
  paper: Sequence[Point] = (),
  *,
  overlay: bool = True,
  y_label: str = 'Linear 5-shot ImageNet top-1',
  compute_unit: str = 'exaFLOPs',
  unit: str = 'core',
) -> Any:
  """Draws few-shot accuracy of axial models, over compute and over speed.

  Args:
    points: model -> compute of its pre-training, images per second per `unit`
      in inference, accuracy as a fraction. If the compute or the speed is None,
      that panel does not have the model.
    paper: the paper's points.
    overlay: whether to draw the paper's points.
    y_label: of the accuracy.
    compute_unit: of the compute; with `paper`, it must be the paper's.
    unit: what the speed refers to, 'core' or 'device'.

  Raises:
    ValueError: the compute or the speed is not more than 0.
  """
  found, shown = _marks13(points), marks.papers(paper if overlay else ())
  series = marks.series_of(found, shown)
  style = {
    name: look | {'linestyle': 'none', 'markersize': 6}
    for name, look in chart.styles(series).items()
  }
  titles = (_LEFT, _RIGHT)
  figure, panels = chart.panels(2, _size(titles, 3.3), sharey=True)
  _draw_panels(panels, titles, found, shown, style)
  names = (
    f'Pre-training compute ({compute_unit})',
    f'Peak speed (images/s/{unit})',
  )
  for axes, name in zip(panels, names, strict=True):
    axes.set_title('')
    axes.set_xlabel(name)
  panels[0].set_ylabel(y_label)
  chart.add_legend(figure, series, _any_in(titles, shown))
  return figure


def figure13_rows(
  points: Mapping[str, tuple[float | None, float | None, Number]],
  paper: Sequence[Point] = (),
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure13`."""
  return marks.rows(_marks13(points), marks.papers(paper))


def _marks5(
  points: Mapping[str, tuple[str, float, Mapping[str, Number]]],
) -> list[marks.Mark]:
  marks.check_names('family', (row[0] for row in points.values()), [*FAMILIES])
  return [
    marks.ours(FAMILIES[family], exaflops, number, panel, run)
    for run, (family, exaflops, numbers) in points.items()
    for panel, number in numbers.items()
  ]


def _papers5(points: Sequence[Point]) -> list[marks.Mark]:
  names = dict(zip(PAPERS_FAMILIES, FAMILIES.values(), strict=True))
  return marks.papers(points, series=lambda name: names.get(name, name))


def _marks8(
  points: Mapping[tuple[str, float], Mapping[str, Number]],
) -> list[marks.Mark]:
  marks.check_names('dimension', (name for name, _ in points), DIMENSIONS)
  return [
    marks.ours(dimension, compute, number, panel)
    for (dimension, compute), numbers in points.items()
    for panel, number in numbers.items()
  ]


def _marks13(
  points: Mapping[str, tuple[float | None, float | None, Number]],
) -> list[marks.Mark]:
  return [
    marks.ours(model, x, number, panel)
    for model, (*places, number) in points.items()
    for panel, x in zip((_LEFT, _RIGHT), places, strict=True)
  ]


def _draw_panels(
  panels: Sequence[Any],
  titles: Sequence[str],
  found: Sequence[marks.Mark],
  shown: Sequence[marks.Mark],
  style: Mapping[str, Mapping[str, Any]],
) -> None:
  """Draws the marks of each panel into its axes, with its title."""
  for axes, title in zip(panels, titles, strict=True):
    mine = [m for m in found if m.panel == title]
    theirs = [m for m in shown if m.panel == title]
    chart.draw_series(axes, mine, theirs, style)
    chart.log_x(axes, [*mine, *theirs])
    axes.set_title(title)
    chart.say_if_empty(axes)


def _size(titles: Sequence[str], height: float) -> tuple[float, float]:
  """Returns the width and height in inches of a figure with these panels."""
  return (chart.WIDE if len(titles) > 1 else chart.NARROW), height


def _any_in(titles: Sequence[str], shown: Sequence[marks.Mark]) -> bool:
  """Whether any of the marks is drawn in these panels."""
  return any(mark.panel in titles and mark.x is not None for mark in shown)
