"""Figures 3, 4 and 9: accuracy over data, images and epochs."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.numbers.values import Point
from vit_jax.paper.plots import chart, marks
from vit_jax.paper.report import Number

_FIVE_SHOT = 'Linear 5-shot ImageNet top-1 (%)'
_SIZES = ('Ti', 'S', 'b', 'B', 'L', 'H')
_LETTERS = 45  # As many fit below the axis.
_BIT = 'BiT'  # The label in the legend.
_BIT_COLOUR = '0.8'
# As fractions of the distance between two data sets: how far the area extends
# beyond them, the shift between series, and that of the paper's points.
_EDGE, _ASIDE, _PAPER_ASIDE = 0.15, 0.03, 0.08


@drawing.styled
def figure3(
  points: Mapping[tuple[str, str], Number],
  *,
  data: Sequence[str],
  paper: Sequence[Point] = (),
  overlay: bool = True,
  y_label: str = 'ImageNet top-1 accuracy (%)',
) -> Any:
  """Draws accuracy by pre-training data; larger ViTs have larger markers.

  BiT's models are an area between the worst and the best of them. Lines and
  area have gaps where numbers in the middle are missing.

  Args:
    points: (model, data) -> accuracy in percent; names of BiT models begin with
      `BiT`.
    data: names of the data sets, from left to right.
    paper: the paper's points.
    overlay: whether to draw the paper's points.
    y_label: of the accuracy.

  Raises:
    ValueError: the data of a point is not in `data`, which the message lists.
  """
  found = _marks3(points, data)
  shown = _known(marks.papers(paper if overlay else ()), data)
  bit, vits = _divide(_placed(found, data))
  papers_bit, papers_vits = _divide(_placed(shown, data))
  series = sorted(marks.series_of(vits, papers_vits), key=_size)
  figure, (axes,) = chart.panels(1, (chart.NARROW, 3.7))
  _draw_area(axes, bit)
  with_gaps = [*vits, *_gaps(vits, len(data))]
  chart.draw_series(
    axes,
    _aside(with_gaps, series),
    _aside(papers_vits, series, _PAPER_ASIDE),
    _sized(series),
  )
  look = {'color': chart.GREY, 'marker': 's'}
  chart.draw_paper(axes, papers_bit, look, '' if bit else _BIT)
  if found or shown:
    axes.set_xlim(-0.3, len(data) - 0.7)
    axes.set_xticks(range(len(data)), data)
    if len(data) * max(map(len, data)) > _LETTERS:
      axes.tick_params('x', rotation=20)
  axes.set_xlabel('Pre-training data')
  axes.set_ylabel(y_label)
  chart.say_if_empty(axes)
  chart.add_legend(figure, [_BIT, *series], bool(shown))
  return figure


def figure3_rows(
  points: Mapping[tuple[str, str], Number],
  *,
  data: Sequence[str],
  paper: Sequence[Point] = (),
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure3`."""
  return marks.rows(_marks3(points, data), marks.papers(paper))


@drawing.styled
def figure4(
  points: Mapping[tuple[str, int], Number],
  *,
  paper: Sequence[Point] = (),
  overlay: bool = True,
  x_label: str = 'Number of JFT-300M images',
  y_label: str = _FIVE_SHOT,
) -> Any:
  """Draws few-shot accuracy by number of images; ResNets are dashed.

  Args:
    points: (model, number of pre-training images) -> accuracy in percent.
    paper: the paper's points.
    overlay: whether to draw the paper's points.
    x_label: of the number of images.
    y_label: of the accuracy.

  Raises:
    ValueError: a number of images is not more than 0.
  """
  found, shown = _marks4(points), marks.papers(paper if overlay else ())
  series = marks.series_of(found, shown)
  figure, (axes,) = chart.panels(1, (chart.NARROW, 3.5))
  chart.draw_series(axes, found, shown, chart.styles(series))
  chart.log_x(axes, [*found, *shown])
  places = sorted({m.x for m in (*found, *shown) if m.x is not None})
  _tick_images(axes, places)
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  chart.say_if_empty(axes)
  chart.add_legend(figure, series, bool(shown))
  return figure


def figure4_rows(
  points: Mapping[tuple[str, int], Number], *, paper: Sequence[Point] = ()
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure4`."""
  return marks.rows(_marks4(points), marks.papers(paper))


@drawing.styled
def figure9(
  curves: Mapping[str, Sequence[tuple[float, Number]]],
  paper: Sequence[Point] = (),
  *,
  overlay: bool = True,
  x_label: str = 'Epochs of training',
  y_label: str = _FIVE_SHOT,
) -> Any:
  """Draws few-shot accuracy during pre-training, by head and learning rate.

  Args:
    curves: such as 'CLS-Token, lr=8e-4' -> (epoch, accuracy in percent).
    paper: the paper's points.
    overlay: whether to draw the paper's points.
    x_label: of the epochs.
    y_label: of the accuracy.
  """
  found, shown = _marks9(curves), marks.papers(paper if overlay else ())
  series = marks.series_of(found, shown)
  figure, (axes,) = chart.panels(1, (chart.NARROW, 3.3))
  chart.draw_series(axes, found, shown, chart.styles(series))
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  chart.say_if_empty(axes)
  chart.add_legend(figure, series, bool(shown))
  return figure


def figure9_rows(
  curves: Mapping[str, Sequence[tuple[float, Number]]],
  paper: Sequence[Point] = (),
) -> pd.DataFrame:
  """Returns the points, see `marks.rows`; arguments are those of `figure9`."""
  return marks.rows(_marks9(curves), marks.papers(paper))


def _marks3(
  points: Mapping[tuple[str, str], Number], data: Sequence[str]
) -> list[marks.Mark]:
  marks.check_names('data', (name for _, name in points), data)
  return [marks.ours(*key, number) for key, number in points.items()]


def _marks4(points: Mapping[tuple[str, int], Number]) -> list[marks.Mark]:
  return [marks.ours(*key, number) for key, number in points.items()]


def _marks9(
  curves: Mapping[str, Sequence[tuple[float, Number]]],
) -> list[marks.Mark]:
  return [
    marks.ours(label, epoch, number)
    for label, curve in curves.items()
    for epoch, number in curve
  ]


def _known(
  shown: Sequence[marks.Mark], data: Sequence[str]
) -> list[marks.Mark]:
  """Returns the marks whose data is on the axis."""
  return [mark for mark in shown if mark.x in data]


def _placed(
  found: Sequence[marks.Mark], data: Sequence[str]
) -> list[marks.Mark]:
  """Returns the marks with the index of their data as x, not its name."""
  return [marks.at(mark, data.index(mark.x)) for mark in found]


def _divide(
  found: Sequence[marks.Mark],
) -> tuple[list[marks.Mark], list[marks.Mark]]:
  """Returns the ResNets and the others."""
  bit = [mark for mark in found if chart.is_resnet(mark.series)]
  return bit, [mark for mark in found if mark not in bit]


def _gaps(found: Sequence[marks.Mark], places: int) -> list[marks.Mark]:
  """Returns marks that interrupt each series where it has no number."""
  there = {(mark.series, mark.x) for mark in found}
  return [
    marks.Mark(series, place, math.nan)
    for series in marks.series_of(found)
    for place in range(places)
    if (series, place) not in there
  ]


def _aside(
  found: Sequence[marks.Mark], series: Sequence[str], more: float = 0
) -> list[marks.Mark]:
  """Shifts each series a little, so that markers do not hide one another."""
  middle = (len(series) - 1) / 2
  return [
    marks.at(m, m.x + more + _ASIDE * (series.index(m.series) - middle))
    for m in found
  ]


def _size(model: str) -> tuple[int, int, str]:
  """Returns a key to sort models by size, then from large patches to small."""
  name = re.search(r'(Ti|S|b|B|L|H)/(\d+)$', model)
  if not name:
    return len(_SIZES), 0, model
  return _SIZES.index(name[1]), -int(name[2]), model


def _sized(series: Sequence[str]) -> dict[str, dict[str, Any]]:
  """Returns the styles of series sorted by size: markers become larger."""
  return {
    name: look | {'marker': 'o', 'markersize': 4 + 1.3 * index}
    for index, (name, look) in enumerate(chart.styles(series).items())
  }


def _draw_area(axes: Any, bit: Sequence[marks.Mark]) -> None:
  """Shades from the worst to the best model; gaps in the data stay empty."""
  heights: dict[int, list[float]] = {}
  for mark in bit:
    heights.setdefault(mark.x, []).append(mark.y)
  starts = [place for place in sorted(heights) if place - 1 not in heights]
  for start in starts:
    end = start
    while end + 1 in heights:
      end += 1
    middle = range(start, end + 1)
    # Extended to both sides, because a single place would have no width.
    inner = [min(heights[x]) for x in middle], [max(heights[x]) for x in middle]
    low, high = ([side[0], *side, side[-1]] for side in inner)
    axes.fill_between(
      [start - _EDGE, *middle, end + _EDGE],
      low,
      high,
      facecolor=_BIT_COLOUR,
      edgecolor=chart.GREY,
      linewidth=0.6,
      alpha=0.6,
      zorder=1,
      label=_BIT,
    )


def _tick_images(axes: Any, places: Sequence[float]) -> None:
  """Puts ticks at the numbers of images themselves, if they are few."""
  from matplotlib import ticker

  if not places:
    return
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  if len(places) <= 6:
    axes.xaxis.set_major_locator(ticker.FixedLocator(places))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
