"""The paper's figures of numbers: lines and points.

`frame` tables points of ours and of the paper, `draw` draws them, and `picture`
writes the picture with its points as a CSV file.
"""

import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.report import Number, Picture
from vit_jax.paper.runs import Results

COLUMNS = (
  *('source', 'panel', 'series', 'label', 'x', 'mean', 'std', 'n', 'note'),
)
# Okabe and Ito's colours, which colour-blind people can tell apart. Their
# yellow is left out, as it is too light for lines; black is last.
_COLOURS = (
  *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9'),
  '#000000',
)
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '*')
GREY = '0.45'
_STYLE = pathlib.Path(__file__).with_name('plots.mplstyle')
# In inches: widths of a column of a page and of the whole page, and a height.
NARROW, WIDE, _HEIGHT = 3.9, 7.0, 3.5
_POINT = {'linestyle': 'none', 'markersize': 6}
# Of the paper: larger than ours and below them.
_HOLLOW = {
  **{'linestyle': 'none', 'markerfacecolor': 'white', 'markersize': 7},
  'zorder': 2.4,
}
# Places of a name beside its point, as (right, up), the best first.
_BESIDE = (
  *((1, 0), (1, 1), (1, -1), (0, 1), (0, -1)),
  *((-1, 0), (-1, 1), (-1, -1)),
)


def frame(points: Iterable[Sequence[Any]]) -> pd.DataFrame:
  """Returns a row for each point that has a number, ours first.

  Args:
    points: each is a series, as the legend names it; x, None if unknown; the
      number; and, as far as they are needed, the key of the panel, the name of
      the run, and where the paper's x is from.

  Returns:
    The columns of `COLUMNS`. `source` is 'ours' or 'paper'; `std` is half of
    the error bar; `n` is the number of runs; `note` says where the number is
    from: our runs, or a place in the paper. Unknown values are empty.
  """
  rows = []
  for series, x, found, *more in points:
    panel, label, x_note = (*more, '', '', '')[:3]
    if isinstance(found, Number):
      y, n, source = found.mean, len(found.values), 'ours'
      note = '; '.join(found.runs)
    elif found:
      y, n, source = float(found.value), None, 'paper'
      note = '; x: '.join(filter(None, [found.note, x_note]))
    else:
      continue
    rows.append((source, panel, series, label, x, y, found.std, n, note))
  rows.sort(key=lambda row: row[0])
  # Int64: counts stay whole numbers although some are unknown.
  types = {'mean': float, 'std': float, 'n': 'Int64', 'x': object}
  return pd.DataFrame(rows, columns=[*COLUMNS]).astype(types)


def picture(
  name: str,
  title: str,
  caption: str,
  points: Iterable[Sequence[Any]],
  pictures: pathlib.Path,
  results: Results,
  **axes: Any,
) -> Picture:
  """Writes a picture and its numbers; returns the block of the page.

  Args:
    name: of the files.
    title: what it shows.
    caption: what to look at, and what the paper found.
    points: see `frame`.
    pictures: the folder.
    results: the paper's points are in the file, but drawn only beside results
      that are comparable.
    **axes: see `draw`.
  """
  marks = frame(points)
  shown = marks if results.comparable else marks[marks.source == 'ours']
  figure = draw(shown, **axes)
  drawing.save(figure, pictures / name, marks, mark=results.mark)
  return Picture(title, f'{pictures.name}/{name}', caption)


def draw(
  marks: pd.DataFrame,
  *,
  x_label: str | Sequence[str] = '',
  y_label: str | Sequence[str],
  panels: Mapping[str, str] | None = None,
  series: Sequence[str] = (),
  log_x: bool = False,
  log_y: bool = False,
  x_ticks: Sequence[float] = (),
  x_names: Sequence[str] = (),
  scatter: bool = False,
  abreast: bool = False,
  names: Callable[[str], str] | None = None,
) -> Any:
  """Draws marks as lines or points; ResNets are dashed, the paper hollow.

  Error bars are one standard deviation up and down. The paper's points are
  larger than ours and below them: equal points look like a ring.

  Args:
    marks: see `frame`; points without x are not drawn.
    x_label: of the x axis, or of each panel's.
    y_label: of the left panel's y axis, or of each panel's.
    panels: panel of the marks -> title; None: one panel without a name.
    series: their order in the legend; others follow as they occur.
    log_x: whether the x axis is logarithmic.
    log_y: whether the y axis is.
    x_ticks: places of ticks, such as numbers of images; () leaves them to
      matplotlib.
    x_names: from left to right, where marks have these names as x.
    scatter: points without lines.
    abreast: whether series stand side by side in each panel, whatever their x.
    names: returns what stands beside each of our points from its label; None:
      nothing does.
  """
  from matplotlib import style

  marks = marks[marks.x.notna()]
  panels = panels or {'': ''}
  count = len(panels)
  x_labels = [x_label] * count if isinstance(x_label, str) else x_label
  y_labels = [y_label] + [''] * count if isinstance(y_label, str) else y_label
  looks = styles([*series, *marks.series])
  if abreast:
    marks = marks.assign(x=marks.series.map([*looks].index))
  if x_names:
    marks = marks.assign(x=marks.x.map(x_names.index))
  if scatter:
    looks = {name: look | _POINT for name, look in looks.items()}
  with drawing.in_style(), style.context(_STYLE):
    figure = drawing.new_figure((WIDE if count > 1 else NARROW, _HEIGHT))
    axes = figure.subplots(1, count, squeeze=False)[0]
    for one, panel, x, y in zip(axes, panels, x_labels, y_labels, strict=False):
      one.set(title=panels[panel], xlabel=x, ylabel=y)
      here = marks[marks.panel == panel]
      if here.empty:
        _say_empty(one)
        continue
      _ticks(one, [*here.x], x_ticks, log_x)
      if x_names:
        one.set_xticks(range(len(x_names)), x_names)
      if log_y:
        one.set_yscale('log')
      for name, look in looks.items():
        _draw(one, here[here.series == name].sort_values('x'), look)
      if abreast:
        one.set(xticks=[], xlim=(-1, len(looks)))
    _legend(figure, looks, marks)
    for one, panel in zip(axes if names else (), panels, strict=False):
      ours = (marks.source == 'ours') & (marks.panel == panel)
      _label_points(one, marks[ours], names)
  return figure


def styles(series: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Returns series -> colour, marker and line style; no two are the same.

  ResNets have dashed lines, so that they are a group at a glance.
  """
  return {
    name: {
      'color': colour,
      'marker': marker,
      'linestyle': '--' if name.startswith('BiT') or 'ResNet' in name else '-',
    }
    for name, colour, marker in zip(
      dict.fromkeys(series),
      # Seven colours and eight markers: 56 pairs.
      itertools.cycle(_COLOURS),
      itertools.cycle(_MARKERS),
      strict=False,
    )
  }


def _draw(axes: Any, marks: pd.DataFrame, look: Mapping[str, Any]) -> None:
  """Draws a series."""
  for source, more in (('paper', _HOLLOW), ('ours', {'zorder': 3})):
    own = marks[marks.source == source]
    bars = own[own['std'].notna()]
    if len(own):
      label = own.series.iloc[0]
      axes.plot([*own.x], own['mean'], **{**look, **more}, label=label)
    if len(bars):
      width = {'elinewidth': 0.9, 'capthick': 0.9}
      axes.errorbar(
        *([*bars.x], bars['mean'], bars['std']),
        **{'fmt': 'none', 'ecolor': look['color'], 'zorder': 2.5, **width},
      )


def _ticks(
  axes: Any, shown: Sequence[float], places: Sequence[float], log: bool
) -> None:
  """Sets the x axis's ticks, as plain or short numbers, and its scale."""
  from matplotlib import ticker

  if log:
    low, high = min(shown), max(shown)
    # A narrow range is padded so much that it has room for two ticks.
    pad = max((high / low) ** 0.1, 2 if high / low < 4 else 1)
    axes.set_xscale('log')
    axes.set_xlim(low / pad, high * pad)
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  if places:
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _say_empty(axes: Any) -> None:
  """Writes "no results yet" into axes without a mark."""
  axes.set(xticks=[], yticks=[])
  middle = {'ha': 'center', 'va': 'center', 'transform': axes.transAxes}
  axes.text(0.5, 0.5, 'no results yet', color=GREY, **middle)


def _legend(
  figure: Any, looks: Mapping[str, Mapping[str, Any]], marks: pd.DataFrame
) -> None:
  """Puts a legend of all axes below them, where it hides nothing."""
  from matplotlib.lines import Line2D

  sources = marks.groupby('series').source.agg(set)
  shown = {
    name: look if 'ours' in sources[name] else look | _HOLLOW
    for name, look in looks.items()
    if name in sources
  }
  if 'paper' in {*marks.source}:
    shown['paper'] = {'color': GREY, 'marker': 'o', **_HOLLOW}
  if not shown:
    return
  inches = 0.55 + 0.065 * max(map(len, shown))  # Includes the legend's line.
  fitting = max(1, int(figure.get_figwidth() / inches))
  figure.legend(
    [Line2D([], [], **look, label=name) for name, look in shown.items()],
    shown,
    loc='outside lower center',
    ncols=math.ceil(len(shown) / math.ceil(len(shown) / fitting)),
  )


def _label_points(
  axes: Any, marks: pd.DataFrame, names: Callable[[str], str]
) -> None:
  """Writes a name beside each mark, where it hides least.

  Call it last: the places depend on the limits and the size of the axes.
  """
  axes.figure.draw_without_rendering()  # Settles the layout.
  places = [*zip(marks.x, marks['mean'], strict=True)]
  points = axes.transData.transform(places or [(0, 0)])
  taken: list[Any] = []
  for label, place in zip(marks.label, places, strict=True):
    text = axes.annotate(
      names(label),
      place,
      (0, 0),
      textcoords='offset points',
      fontsize=5.5,
      color='0.25',
      # Names may stand outside of the axes, but must not squeeze them.
      annotation_clip=False,
      in_layout=False,
    )
    _place(text, points, taken)
    taken.append(text.get_window_extent())


def _place(text: Any, points: Any, taken: Sequence[Any]) -> None:
  """Moves a name to that place beside its point where it hides least."""

  def hidden(place: tuple[int, int]) -> float:
    move(*place)
    box, axes = text.get_window_extent(), text.axes.bbox
    inside = axes.fully_containsx(box.x0) and axes.fully_containsx(box.x1)
    return (
      sum(box.overlaps(other) for other in taken)
      + sum(box.contains(*point) for point in points)
      + 0.5 * (not inside)
    )

  def move(right: int, up: int) -> None:
    text.set(
      position=(6 * right, 5 * up),
      ha={1: 'left', 0: 'center', -1: 'right'}[right],
      va={1: 'bottom', 0: 'center', -1: 'top'}[up],
    )

  move(*min(_BESIDE, key=hidden))
