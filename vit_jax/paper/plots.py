"""The paper's figures of numbers: lines and points from marks.

A `Mark` is a point, of ours or of the paper. `draw` draws marks, and `picture`
writes the picture with its marks as a CSV file.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vit_jax.pages import drawing
from vit_jax.paper.numbers import Value
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
  **{'linestyle': 'none', 'markerfacecolor': 'white', 'markersize': 8},
  'zorder': 2.4,
}
# Places of a name beside its point, as (right, up), the best first.
_BESIDE = (
  *((1, 0), (1, 1), (1, -1), (0, 1), (0, -1)),
  *((-1, 0), (-1, 1), (-1, -1)),
)


@dataclasses.dataclass(frozen=True)
class Mark:
  """A point.

  Attributes:
    series: what the legend says.
    x: where it is; None if unknown: then it is not drawn.
    y: its height.
    std: half the length of its error bar; None if it has none.
    n: number of runs that it is the mean of; None if unknown.
    panel: key of the panel, in figures with several.
    label: the run, if each point of the series has its own.
    note: where it is from: our runs, or a place in the paper.
    source: 'ours' or 'paper'.
  """

  series: str
  x: float | str | None
  y: float
  std: float | None = None
  n: int | None = None
  panel: str = ''
  label: str = ''
  note: str = ''
  source: str = 'ours'


def mark_of(
  series: str,
  x: float | str | None,
  found: Number | Value,
  panel: str = '',
  label: str = '',
  x_note: str = '',
) -> Mark:
  """Returns the mark of a number of ours or of the paper.

  Args:
    series: as the attribute; so are `x`, `panel` and `label`.
    x: where it is.
    found: the number.
    panel: key of the panel.
    label: the run.
    x_note: where the paper's x is from.
  """
  if isinstance(found, Value):
    y, n, source = float(found.value), None, 'paper'
    note = '; x: '.join(filter(None, [found.note, x_note]))
  else:
    y, n, source = found.mean, len(found.values), 'ours'
    note = '; '.join(found.runs)
  return Mark(series, x, y, found.std, n, panel, label, note, source)


def marks_of(several: Iterable[Sequence[Any]]) -> list[Mark]:
  """Returns the marks of several numbers, as far as they are there.

  Args:
    several: arguments of `mark_of`; where the number is None, there is none.
  """
  return [mark_of(*one) for one in several if one[2] is not None]


def rows(marks: Sequence[Mark]) -> pd.DataFrame:
  """Returns a row for each mark, with the columns of `COLUMNS`; ours are first.

  Unknown values are empty.
  """
  lines_ = [
    {'mean': mark.y, **dataclasses.asdict(mark)}
    for mark in sorted(marks, key=lambda mark: mark.source)
  ]
  frame = pd.DataFrame(lines_, columns=list(COLUMNS))
  # Int64: counts stay whole numbers although some are unknown.
  return frame.astype({'n': 'Int64', 'std': float, 'x': object})


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
    points: see `marks_of`.
    pictures: the folder.
    results: the paper's points are in the file, but drawn only beside results
      that are comparable.
    **axes: see `draw`.
  """
  marks = marks_of(points)
  shown = [m for m in marks if results.comparable or m.source == 'ours']
  figure = draw(shown, **axes)
  drawing.save(figure, pictures / name, rows(marks), mark=results.mark)
  return Picture(title, f'{pictures.name}/{name}', caption)


def draw(
  marks: Sequence[Mark],
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
  share_y: bool = False,
  names: Callable[[str], str] | None = None,
) -> Any:
  """Draws marks as lines or points; ResNets are dashed, the paper hollow.

  Error bars are one standard deviation up and down. The paper's points are
  larger than ours and below them: equal points look like a ring.

  Args:
    marks: the points.
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
    share_y: whether panels share the y axis.
    names: returns what stands beside each of our points from its label; None:
      nothing does.
  """
  from matplotlib import style

  marks = [mark for mark in marks if mark.x is not None]
  panels = panels or {'': ''}
  count = len(panels)
  x_labels = [x_label] * count if isinstance(x_label, str) else x_label
  y_labels = [y_label] + [''] * count if isinstance(y_label, str) else y_label
  looks = styles([*series, *(mark.series for mark in marks)])
  if abreast:
    order = [*looks]
    marks = [dataclasses.replace(m, x=order.index(m.series)) for m in marks]
  if x_names:
    marks = [dataclasses.replace(m, x=x_names.index(m.x)) for m in marks]
  if scatter:
    looks = {name: look | _POINT for name, look in looks.items()}
  with drawing.in_style(), style.context(_STYLE):
    figure = drawing.new_figure((WIDE if count > 1 else NARROW, _HEIGHT))
    axes = figure.subplots(1, count, squeeze=False, sharey=share_y)[0]
    for one, panel, x, y in zip(axes, panels, x_labels, y_labels, strict=False):
      one.set(title=panels[panel], xlabel=x, ylabel=y)
      here = [mark for mark in marks if mark.panel == panel]
      if not here:
        _say_empty(one)
        continue
      _ticks(one, x_ticks, log_x)
      if x_names:
        one.set_xticks(range(len(x_names)), x_names)
      if log_y:
        one.set_yscale('log')
      for name, look in looks.items():
        _draw(one, [m for m in here if m.series == name], look)
      if abreast:
        one.set(xticks=[], xlim=(-1, len(looks)))
    _legend(figure, looks, marks)
    for one, panel in zip(axes if names else (), panels, strict=False):
      ours = [m for m in marks if m.source == 'ours' and m.panel == panel]
      _label_points(one, ours, names)
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


def _draw(axes: Any, marks: Sequence[Mark], look: Mapping[str, Any]) -> None:
  """Draws a series, from left to right."""
  marks = sorted(marks, key=lambda mark: mark.x)
  for source, more in (('paper', _HOLLOW), ('ours', {'zorder': 3})):
    own = [mark for mark in marks if mark.source == source]
    if not own:
      continue
    places = [mark.x for mark in own], [mark.y for mark in own]
    axes.plot(*places, **{**look, **more}, label=own[0].series)
    bars = [(m.x, m.y, m.std) for m in own if m.std is not None]
    if bars:
      width = {'elinewidth': 0.9, 'capthick': 0.9}
      axes.errorbar(
        *zip(*bars, strict=True),
        **{'fmt': 'none', 'ecolor': look['color'], 'zorder': 2.5, **width},
      )


def _ticks(axes: Any, places: Sequence[float], log: bool) -> None:
  """Sets the x axis's ticks, as plain or short numbers, and its scale."""
  from matplotlib import ticker

  if log:
    axes.set_xscale('log')
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  if places:
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _say_empty(axes: Any) -> None:
  """Writes "no results yet" into axes without a mark."""
  # Hidden, not removed: a panel that is not empty may share the ticks.
  sides = ('bottom', 'left', 'labelbottom', 'labelleft')
  axes.tick_params(which='both', **dict.fromkeys(sides, False))
  axes.grid(visible=False)
  middle = {'ha': 'center', 'va': 'center', 'transform': axes.transAxes}
  axes.text(0.5, 0.5, 'no results yet', color=GREY, **middle)


def _legend(
  figure: Any, looks: Mapping[str, Mapping[str, Any]], marks: Sequence[Mark]
) -> None:
  """Puts a legend of all axes below them, where it hides nothing."""
  from matplotlib.lines import Line2D

  shown = {
    name: look
    for name, look in looks.items()
    if name in {mark.series for mark in marks}
  }
  ours = {mark.series for mark in marks if mark.source == 'ours'}
  for name in shown.keys() - ours:
    shown[name] = looks[name] | _HOLLOW
  if any(mark.source == 'paper' for mark in marks):
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
  axes: Any, marks: Sequence[Mark], names: Callable[[str], str]
) -> None:
  """Writes a name beside each mark, where it hides least.

  Call it last: the places depend on the limits and the size of the axes.
  """
  axes.figure.draw_without_rendering()  # Settles the layout.
  points = axes.transData.transform([(m.x, m.y) for m in marks] or [(0, 0)])
  taken: list[Any] = []
  for mark in marks:
    text = axes.annotate(
      names(mark.label),
      (mark.x, mark.y),
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
