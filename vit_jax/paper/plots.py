"""The paper's figures of numbers: lines, points and bars from marks.

A `Mark` is a point or a bar, of ours or of the paper. `lines` and `bars` draw
marks, and `save` writes the picture with its marks as a CSV file. Points of the
paper are always in the file; those of another scale are not drawn.
"""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
GREY = '0.45'
_STYLE = pathlib.Path(__file__).with_name('plots.mplstyle')
# Widths in inches: a column of a page, and the whole page.
NARROW, WIDE = 3.9, 7.0
# Places of a name beside its point, as (right, up), the best first.
_BESIDE = (
  *((1, 0), (1, 1), (1, -1), (0, 1), (0, -1)),
  *((-1, 0), (-1, 1), (-1, -1)),
)
_ASIDE = 0.22  # Of the paper's bar, as a fraction of the distance of two bars.


@dataclasses.dataclass(frozen=True)
class Mark:
  """A point or a bar.

  Attributes:
    series: what the legend says.
    x: where it is; None if unknown: then it is not drawn.
    y: its height; NaN interrupts a line.
    std: half the length of its error bar; None if it has none.
    n: number of runs that it is the mean of; None if unknown.
    panel: title of the panel, in figures with several.
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

  @classmethod
  def of(
    cls,
    series: str,
    x: float | str | None,
    found: Number | Value | None,
    panel: str = '',
    label: str = '',
    x_note: str = '',
  ) -> list['Mark']:
    """Returns the mark of a number of ours or of the paper; none without one.

    Args:
      series: as the attribute; so are `x`, `panel` and `label`.
      x: where it is.
      found: the number.
      panel: title of the panel.
      label: the run.
      x_note: where the paper's x is from.
    """
    if found is None:
      return []
    if isinstance(found, Value):
      y, n, source = float(found.value), None, 'paper'
      note = '; x: '.join(filter(None, [found.note, x_note]))
    else:
      y, n, source = found.mean, len(found.values), 'ours'
      note = '; '.join(found.runs)
    return [cls(series, x, y, found.std, n, panel, label, note, source)]


def marks_of(several: Iterable[Sequence[Any]]) -> list[Mark]:
  """Returns the marks of all that are there; `several`: args of `Mark.of`."""
  return [mark for one in several for mark in Mark.of(*one)]


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


def save(
  name: str,
  title: str,
  caption: str,
  figure: Any,
  marks: Sequence[Mark],
  pictures: pathlib.Path,
  results: Results,
) -> Picture:
  """Writes a picture and its numbers; returns the block of the page."""
  drawing.save(figure, pictures / name, rows(marks), mark=results.mark)
  return Picture(title, f'{pictures.name}/{name}', caption)


# Figures. ---------------------------------------------------------------------


def lines(
  marks: Sequence[Mark],
  *,
  x_label: str | Sequence[str],
  y_label: str | Sequence[str],
  panels: Mapping[str, str] | None = None,
  series: Sequence[str] = (),
  log_x: bool = False,
  log_y: bool = False,
  x_ticks: Sequence[float] = (),
  scatter: bool = False,
  share_y: bool = False,
  names: Callable[[str], str] | None = None,
  height: float = 3.3,
) -> Any:
  """Draws marks as lines or points; ResNets are dashed, the paper hollow.

  Args:
    marks: with numbers as x.
    x_label: of the x axis, or of each panel's.
    y_label: of the left panel's y axis, or of each panel's.
    panels: panel of the marks -> title; None: one panel for all.
    series: their order in the legend; others follow as they occur.
    log_x: whether the x axis is logarithmic.
    log_y: whether the y axis is.
    x_ticks: places of ticks, such as numbers of images; () leaves them to
      matplotlib.
    scatter: points without lines.
    share_y: whether panels share the y axis.
    names: returns what stands beside each of our points from its label; None:
      nothing does.
    height: of the figure in inches.
  """
  drawn = [mark for mark in marks if mark.x is not None]
  panels = panels or {'': ''}
  several = len(panels) > 1
  order = [*dict.fromkeys([*series, *(mark.series for mark in drawn)])]
  looks = styles(order)
  point = {'linestyle': 'none', 'markersize': 6} if scatter else {}
  with _styled():
    figure, axes = _axes(len(panels), height, sharey=share_y)
    for i, (one, (panel, title)) in enumerate(
      zip(axes, panels.items(), strict=True)
    ):
      here = [mark for mark in drawn if not several or mark.panel == panel]
      for name, look in looks.items():
        own = [mark for mark in here if mark.series == name]
        mine = [mark for mark in own if _ours(mark)]
        theirs = [mark for mark in own if not _ours(mark)]
        _draw(one, mine, {**look, **point, 'zorder': 3}, name)
        _draw_paper(one, theirs, look, '' if mine else name)
      if here and log_x:
        _log_x(one, [mark.x for mark in here])
      if here and log_y:
        one.set_yscale('log')
      if here and x_ticks:
        from matplotlib import ticker

        one.set_xticks(x_ticks, minor=False)
        one.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
        one.xaxis.set_minor_locator(ticker.NullLocator())
      one.set_title(title)
      one.set_xlabel(x_label if isinstance(x_label, str) else x_label[i])
      if not isinstance(y_label, str) or not i:
        one.set_ylabel(y_label if isinstance(y_label, str) else y_label[i])
      _say_if_empty(one)
    _legend(figure, order, any(not _ours(mark) for mark in drawn))
    if names:
      for one, panel in zip(axes, panels, strict=True):
        mine = [m for m in drawn if _ours(m) and m.panel == panel]
        _label_points(one, mine, [names(mark.label) for mark in mine])
  return figure


def bars(
  marks: Sequence[Mark],
  *,
  y_label: str,
  panels: Mapping[str, str] | None = None,
  series: Sequence[str] = (),
  overlay: bool = True,
) -> Any:
  """Draws a bar for each of our marks; the paper's are diamonds.

  The axes do not begin at zero, as the bars would look alike; two strokes mark
  that.

  Args:
    marks: in each panel, one for each series.
    y_label: of the left panel's axis.
    panels: panel of the marks -> title; None: one panel for all.
    series: their order in the legend; others follow as they occur.
    overlay: whether to draw the paper's marks: on the bar of our model, or
      beside our bars if we do not have the model.
  """
  drawn = [mark for mark in marks if overlay or _ours(mark)]
  panels = panels or {'': ''}
  order = [*dict.fromkeys([*series, *(mark.series for mark in drawn)])]
  looks = styles(order)
  with _styled():
    figure, axes = _axes(len(panels), 2.9, WIDE)
    for one, (panel, title) in zip(axes, panels.items(), strict=True):
      here = [m for m in drawn if len(panels) == 1 or m.panel == panel]
      there = {mark.series for mark in here if _ours(mark)}
      for mark in here:
        place = order.index(mark.series)
        colour = looks[mark.series]['color']
        if _ours(mark):
          one.bar(place, mark.y, 0.8, color=colour, label=mark.series, zorder=2)
          at = dataclasses.replace(mark, x=place)
          _draw_error_bars(one, [at], 'black')
          continue
        # On our bar, it is grey and right of the middle, where our error bar
        # is.
        on_bar = mark.series in there
        at = dataclasses.replace(mark, x=place + _ASIDE * on_bar)
        look = {'color': GREY if on_bar else colour, 'marker': 'D'}
        label = '' if on_bar else mark.series
        _draw_paper(one, [at], look | {'markersize': 3.5}, label)
      one.set_title(title)
      one.grid(visible=False, axis='x')
      one.set_xticks([])
      _limits(one, len(order), here)
      _say_if_empty(one)
    axes[0].set_ylabel(y_label)
    paper = any(not _ours(mark) for mark in drawn)
    _legend(figure, order, paper, marker='D')
  return figure


def styles(series: Sequence[str]) -> dict[str, dict[str, Any]]:
  """Returns series -> colour, marker and line style; no two are the same.

  ResNets have dashed lines, so that they are a group at a glance.
  """
  found = {}
  for index, name in enumerate(series):
    # Seven colours and seven markers: every turn shifts them to new pairs.
    turn = index // len(_COLOURS)
    resnet = name.startswith('BiT') or 'ResNet' in name
    found[name] = {
      'color': _COLOURS[index % len(_COLOURS)],
      'marker': _MARKERS[(index + turn) % len(_MARKERS)],
      'linestyle': '--' if resnet else '-',
    }
  return found


# Elements. --------------------------------------------------------------------


def _ours(mark: Mark) -> bool:
  return mark.source == 'ours'


@contextlib.contextmanager
def _styled() -> Iterator[None]:
  from matplotlib import style

  with drawing.in_style(), style.context(_STYLE):
    yield


def _axes(
  count: int, height: float, width: float = 0.0, **options: Any
) -> tuple[Any, Sequence[Any]]:
  """Returns a figure and its axes in a row."""
  width = width or (WIDE if count > 1 else NARROW)
  figure = drawing.new_figure((width, height))
  return figure, figure.subplots(1, count, squeeze=False, **options)[0]


def _draw(
  axes: Any, marks: Iterable[Mark], look: Mapping[str, Any], label: str
) -> None:
  """Draws a series from left to right, with error bars of one deviation."""
  marks = sorted(marks, key=lambda mark: mark.x)
  if not marks:
    return
  places = [mark.x for mark in marks], [mark.y for mark in marks]
  axes.plot(*places, **look, label=label)
  _draw_error_bars(axes, marks, look['color'])


def _draw_error_bars(axes: Any, marks: Iterable[Mark], colour: str) -> None:
  """Draws one standard deviation up and down, for marks that have one."""
  if bars := [(m.x, m.y, m.std) for m in marks if m.std is not None]:
    x, y, spread = zip(*bars, strict=True)
    width = {'elinewidth': 0.9, 'capthick': 0.9}
    axes.errorbar(
      x, y, yerr=spread, fmt='none', ecolor=colour, zorder=2.5, **width
    )


def _draw_paper(
  axes: Any, marks: Sequence[Mark], look: Mapping[str, Any], label: str
) -> None:
  """Draws points of the paper as hollow markers, without a line.

  They are larger than ours and below them: equal points look like a ring.

  Args:
    axes: to draw in.
    marks: with numbers as x.
    look: of the series.
    label: in the legend, for a series that we do not have.
  """
  hollow = {
    'linestyle': 'none',
    'markerfacecolor': 'white',
    'markersize': look.get('markersize', 5) + 2,
    'zorder': 2.4,
  }
  _draw(axes, marks, {**look, **hollow}, label or '_paper')


def _log_x(axes: Any, places: Sequence[float]) -> None:
  """Makes x logarithmic, with room on both sides and ticks as plain numbers."""
  from matplotlib import ticker

  low, high = min(places), max(places)
  # A narrow range is padded so much that it has room for two ticks.
  pad = max((high / low) ** 0.06, 2 if high / low < 4 else 1.15)
  axes.set_xscale('log')
  axes.set_xlim(low / pad, high * pad)
  subs = (1, 2, 5) if high / low < 30 else (1, 3) if high / low < 3000 else (1,)
  axes.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
  axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _limits(axes: Any, count: int, shown: Sequence[Mark]) -> None:
  """Starts the axes below the lowest bar, by half of the bars' range."""
  axes.set_xlim(-0.8, max(count, 1) - 0.2)
  if not shown:
    return
  low = min(mark.y - (mark.std or 0) for mark in shown)
  high = max(mark.y + (mark.std or 0) for mark in shown)
  room = max(high - low, 5)  # Percentage points.
  axes.set_ylim(max(0, low - 0.5 * room), high + 0.12 * room)
  if low <= 0.5 * room:
    return
  for up in (0.03, 0.06):  # The axis does not begin at zero.
    axes.plot(
      *((-0.02, 0.02), (up - 0.012, up + 0.012)),
      transform=axes.transAxes,
      color='black',
      linewidth=0.8,
      clip_on=False,
      label='_break',
    )


def _say_if_empty(axes: Any) -> None:
  """Writes "no results yet" into axes without a line or a bar."""
  if axes.lines or axes.patches or axes.collections:
    return
  # Hidden, not removed: a panel that is not empty may share the ticks.
  sides = ('bottom', 'left', 'labelbottom', 'labelleft')
  axes.tick_params(which='both', **dict.fromkeys(sides, False))
  axes.grid(visible=False)
  middle = {'ha': 'center', 'va': 'center', 'transform': axes.transAxes}
  axes.text(0.5, 0.5, 'no results yet', color=GREY, **middle)


def _legend(
  figure: Any, order: Iterable[str], paper: bool, marker: str = 'o'
) -> None:
  """Puts a legend of all axes below them, where it hides nothing.

  Args:
    figure: whose axes have labelled artists.
    order: of the labels.
    paper: whether points of the paper are drawn; then the legend explains them.
    marker: of the paper's points.
  """
  from matplotlib.lines import Line2D

  handles: dict[str, Any] = {}
  for axes in figure.axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      hollow = getattr(handle, 'get_markerfacecolor', str)() == 'white'
      # A hollow marker is in the legend only if no panel has one of ours.
      if label not in handles or not hollow:
        handles[label] = handle
  shown = {label: handles[label] for label in order if label in handles}
  if paper:
    look = {'linestyle': 'none', 'color': GREY, 'markerfacecolor': 'white'}
    shown['paper'] = Line2D([], [], marker=marker, markersize=6, **look)
  if not shown:
    return
  inches = 0.55 + 0.065 * max(map(len, shown))  # Includes the legend's line.
  fitting = max(1, int(figure.get_figwidth() / inches))
  figure.legend(
    shown.values(),
    shown.keys(),
    loc='outside lower center',
    ncols=math.ceil(len(shown) / math.ceil(len(shown) / fitting)),
  )


def _label_points(
  axes: Any, marks: Sequence[Mark], names: Sequence[str]
) -> None:
  """Writes a name beside each mark, where it hides least.

  Call it last: the places depend on the limits and the size of the axes.
  """
  axes.figure.draw_without_rendering()  # Settles the layout.
  points = axes.transData.transform([(m.x, m.y) for m in marks] or [(0, 0)])
  taken = []
  for mark, name in zip(marks, names, strict=True):
    choices = []
    for right, up in _BESIDE:
      text = axes.annotate(
        name,
        (mark.x, mark.y),
        (6 * right, 5 * up),
        textcoords='offset points',
        ha={1: 'left', 0: 'center', -1: 'right'}[right],
        va={1: 'bottom', 0: 'center', -1: 'top'}[up],
        fontsize=5.5,
        color='0.25',
        # Names may stand outside of the axes, but must not squeeze them.
        annotation_clip=False,
        in_layout=False,
      )
      box = text.get_window_extent()
      hidden = sum(box.overlaps(other) for other in taken)
      hidden += sum(box.contains(*point) for point in points)
      outside = not axes.bbox.fully_containsx(box.x0)
      outside |= not axes.bbox.fully_containsx(box.x1)
      choices.append((hidden + 0.5 * outside, len(choices), text, box))
    _, _, best, box = min(choices, key=lambda choice: choice[:2])
    taken.append(box)
    for *_, text, _ in choices:
      if text is not best:
        text.remove()
