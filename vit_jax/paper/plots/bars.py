"""Bars: Figure 2, VTAB over all tasks and by group; and memory by model."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.numbers.values import VTAB, Point
from vit_jax.paper.plots import chart, marks
from vit_jax.paper.plots.accuracy_over_compute import FAMILIES
from vit_jax.paper.report import Number

# The title of a panel of ours -> the panel of the paper's points.
GROUPS = {
  'VTAB (19 tasks)': VTAB,
  'Natural': 'natural',
  'Specialized': 'specialized',
  'Structured': 'structured',
}
_ASIDE = 0.22  # As a fraction of the distance between two bars.
_TITLES = {papers: ours for ours, papers in GROUPS.items()}


@drawing.styled
def figure2(
  bars: Mapping[str, Mapping[str, Number]],
  paper: Sequence[Point] = (),
  *,
  overlay: bool = True,
  titles: Mapping[str, str] = types.MappingProxyType({}),
) -> Any:
  """Draws a bar for each model in each of four panels.

  As in the paper, the axes do not begin at zero: the bars would look alike.
  Two strokes mark that.

  Args:
    bars: model -> group of GROUPS -> accuracy in percent.
    paper: the paper's bars. Each is a diamond: on the bar of our model, or
      beside our bars if we do not have the model.
    overlay: whether to draw the paper's bars.
    titles: group of GROUPS -> title of its panel, if it is not the group.

  Raises:
    ValueError: a group is not in GROUPS, which the message lists.
  """
  found, points = _marks(bars), _papers(paper if overlay else ())
  series = marks.series_of(found, points)
  figure, panels = chart.panels(len(GROUPS), (chart.WIDE, 2.9))
  for axes, group in zip(panels, GROUPS, strict=True):
    mine = [m for m in found if m.panel == group]
    theirs = [m for m in points if m.panel == group]
    for place, (name, look) in enumerate(chart.styles(series).items()):
      colour = look['color']
      for mark in (m for m in mine if m.series == name):
        axes.bar(place, mark.y, 0.8, color=colour, label=name, zorder=2)
        _error_bar(axes, place, mark, 'black')
      for mark in (m for m in theirs if m.series == name):
        _diamond(axes, place, mark, name not in bars, colour)
    axes.set_title(titles.get(group, group))
    axes.grid(visible=False, axis='x')
    _limits(axes, len(series), [*mine, *theirs])
    chart.say_if_empty(axes)
    chart.mark_break(axes)
    axes.set_xticks([])
  panels[0].set_ylabel('Accuracy (%)')
  chart.add_legend(figure, series, bool(points), marker='D')
  return figure


def figure2_rows(
  bars: Mapping[str, Mapping[str, Number]], paper: Sequence[Point] = ()
) -> pd.DataFrame:
  """Returns the bars, see `marks.rows`; arguments are those of `figure2`."""
  return marks.rows(_marks(bars), _papers(paper))


def _marks(bars: Mapping[str, Mapping[str, Number]]) -> list[marks.Mark]:
  marks.check_names(
    'group', (group for row in bars.values() for group in row), [*GROUPS]
  )
  return [
    marks.ours(model, group, row[group], group)
    for model, row in bars.items()
    for group in GROUPS
    if group in row
  ]


def _papers(points: Sequence[Point]) -> list[marks.Mark]:
  return [
    marks.at(mark, mark.panel)
    for mark in marks.papers(points, panel=lambda name: _TITLES.get(name, name))
  ]


def _diamond(
  axes: Any, place: int, mark: marks.Mark, alone: bool, colour: str
) -> None:
  """Draws the paper's height, in the series' colour if we have no bar.

  Otherwise it is grey and right of the middle, where our error bar is.
  """
  look = {'color': colour if alone else chart.GREY, 'marker': 'D'}
  at = marks.at(mark, place if alone else place + _ASIDE)
  chart.draw_paper(axes, [at], look | {'markersize': 3.5}, mark.series * alone)


def _error_bar(axes: Any, place: int, mark: marks.Mark, colour: str) -> None:
  chart.draw_error_bars(axes, [marks.at(mark, place)], colour)


def _limits(axes: Any, bars: int, shown: Sequence[marks.Mark]) -> None:
  """Starts the axes below the lowest bar, by half of the bars' range."""
  axes.set_xlim(-0.8, max(bars, 1) - 0.2)
  if not shown:
    return
  low = min(mark.y - (mark.std or 0) for mark in shown)
  high = max(mark.y + (mark.std or 0) for mark in shown)
  room = max(high - low, 5)  # Percentage points.
  axes.set_ylim(max(0, low - 0.5 * room), high + 0.12 * room)


@drawing.styled
def training_memory(bars: Mapping[str, tuple[str, Number]]) -> Any:
  """Draws a bar for each model, in the colour of its family, from zero on.

  Args:
    bars: model -> its family (a key of `FAMILIES`), and the GiB that an image
      takes; from left to right.
  """
  found, families = _of_models(bars), [*FAMILIES.values()]
  style = chart.styles(families)
  figure, (axes,) = chart.panels(1, (chart.WIDE, 3.4))
  for place, mark in enumerate(found):
    colour = style[mark.series]['color']
    axes.bar(place, mark.y, 0.8, color=colour, label=mark.series, zorder=2)
  axes.set_xticks(
    range(len(found)), [mark.x for mark in found], rotation=35, ha='right'
  )
  axes.set_ylabel('Memory of training (GiB an image)')
  axes.grid(visible=False, axis='x')
  chart.say_if_empty(axes)
  chart.add_legend(figure, families, paper=False)
  return figure


def training_memory_rows(
  bars: Mapping[str, tuple[str, Number]],
) -> pd.DataFrame:
  """Returns the bars, see `marks.rows`; as for `training_memory`."""
  return marks.rows(_of_models(bars))


def _of_models(bars: Mapping[str, tuple[str, Number]]) -> list[marks.Mark]:
  return [
    marks.ours(FAMILIES[family], model, number)
    for model, (family, number) in bars.items()
  ]
