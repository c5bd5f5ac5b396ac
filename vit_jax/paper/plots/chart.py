"""The elements of the plots: axes, lines, legends."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vit_jax.pages import drawing
from vit_jax.paper.plots.marks import Mark

# Okabe and Ito's colours, which colour-blind people can tell apart. Their
# yellow is left out, as it is too light for lines; black is last.
COLOURS = (
  *('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9'),
  '#000000',
)
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
GREY = '0.45'
PAPER = 'paper'
NOTHING = 'no results yet'
# Widths in inches: a column of a page, and the whole page.
NARROW, WIDE = 3.9, 7.0
_SIZE = 5  # The size of a marker in points.
# Places of a name beside its point, as (right, up), the best first.
_BESIDE = (
  *((1, 0), (1, 1), (1, -1), (0, 1), (0, -1)),
  *((-1, 0), (-1, 1), (-1, -1)),
)
_BAR = {'elinewidth': 0.9, 'capsize': 2.5, 'capthick': 0.9}


def styles(series: Sequence[str]) -> dict[str, dict[str, Any]]:
  """Returns series -> colour, marker and line style; no two are the same.

  ResNets have dashed lines, so that they are a group at a glance.
  """
  found = {}
  for index, name in enumerate(series):
    # Seven colours and seven markers: every turn shifts them to new pairs.
    turn = index // len(COLOURS)
    found[name] = {
      'color': COLOURS[index % len(COLOURS)],
      'marker': MARKERS[(index + turn) % len(MARKERS)],
      'linestyle': '--' if is_resnet(name) else '-',
    }
  return found


def is_resnet(model: str) -> bool:
  """Whether a model is a ResNet, by its name; hybrids are not."""
  return model.startswith('BiT') or 'ResNet' in model


def panels(count: int, size: tuple[float, float], **kwargs: Any) -> Any:
  """Returns a figure of `size` in inches, and its `count` axes in a row."""
  figure = drawing.new_figure(size)
  axes = figure.subplots(1, count, squeeze=False, **kwargs)[0]
  for one in axes:
    one.grid(alpha=0.3, linewidth=0.5)
    one.set_axisbelow(True)
    one.spines[['top', 'right']].set_visible(False)
  return figure, axes


def draw_line(
  axes: Any, marks: Iterable[Mark], style: Mapping[str, Any], label: str
) -> None:
  """Draws a series of ours from left to right, with its error bars.

  Args:
    axes: to draw in.
    marks: with numbers as x; marks without an x are left out.
    style: options of `Axes.plot`.
    label: in the legend.
  """
  marks = sorted((m for m in marks if m.x is not None), key=lambda m: m.x)
  if not marks:
    return
  axes.plot(
    [m.x for m in marks],
    [m.y for m in marks],
    **{'linewidth': 1.3, 'markersize': _SIZE, 'zorder': 3} | dict(style),
    label=label,
  )
  draw_error_bars(axes, marks, style['color'])


def draw_error_bars(axes: Any, marks: Iterable[Mark], colour: str) -> None:
  """Draws one standard deviation up and down, for marks that have one."""
  spread = [m for m in marks if m.std is not None and m.x is not None]
  if spread:
    axes.errorbar(
      [m.x for m in spread],
      [m.y for m in spread],
      yerr=[m.std for m in spread],
      fmt='none',
      ecolor=colour,
      zorder=2.5,
      **_BAR,
    )


def draw_paper(
  axes: Any, marks: Iterable[Mark], style: Mapping[str, Any], label: str = ''
) -> None:
  """Draws points of the paper as hollow markers, without a line.

  They are larger than ours and below them: equal points look like a ring.

  Args:
    axes: to draw in.
    marks: as in `draw_line`.
    style: of the series; its line is not drawn.
    label: in the legend, for a series that we do not have.
  """
  marks = [m for m in marks if m.x is not None]
  if not marks:
    return
  draw_error_bars(axes, marks, style['color'])
  axes.plot(
    [m.x for m in marks],
    [m.y for m in marks],
    **dict(style)
    | {'markersize': style.get('markersize', _SIZE) + 2, 'zorder': 2.4}
    | {'linestyle': 'none', 'markerfacecolor': 'white', 'markeredgewidth': 1},
    label=label or '_paper',
  )


def draw_series(
  axes: Any,
  found: Sequence[Mark],
  paper: Sequence[Mark],
  style: Mapping[str, Mapping[str, Any]],
) -> None:
  """Draws all series of a panel, ours as lines, the paper's as hollow markers.

  Args:
    axes: to draw in.
    found: our marks in this panel.
    paper: the paper's marks in this panel.
    style: series -> style, for all series of both.
  """
  for series, look in style.items():
    mine = [m for m in found if m.series == series]
    draw_line(axes, mine, look, series)
    theirs = [m for m in paper if m.series == series]
    draw_paper(axes, theirs, look, '' if mine else series)


def label_points(
  axes: Any, marks: Iterable[Mark], names: Sequence[str]
) -> None:
  """Writes a name beside each mark, where it hides least.

  Call it last: the places depend on the limits and the size of the axes.

  Args:
    axes: to draw in.
    marks: with numbers as x; marks without an x are left out.
    names: one for each mark.
  """
  pairs = [
    (mark, name)
    for mark, name in zip(marks, names, strict=True)
    if mark.x is not None
  ]
  axes.figure.draw_without_rendering()  # Settles the layout.
  points = axes.transData.transform([(mark.x, mark.y) for mark, _ in pairs])
  taken = []
  for mark, name in pairs:
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
      )
      text.set_in_layout(False)
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


def mark_break(axes: Any) -> None:
  """Marks a y axis that does not begin at zero by two strokes at its foot."""
  if axes.get_ylim()[0] <= 0:
    return
  for up in (0.03, 0.06):
    axes.plot(
      *((-0.02, 0.02), (up - 0.012, up + 0.012)),
      transform=axes.transAxes,
      color='black',
      linewidth=0.8,
      clip_on=False,
      label='_break',
    )


def say_if_empty(axes: Any) -> None:
  """Writes "no results yet" into axes without a line or a bar."""
  if axes.lines or axes.patches or axes.collections:
    return
  # Hidden, not removed: a panel that is not empty may share the ticks.
  sides = ('bottom', 'left', 'labelbottom', 'labelleft')
  axes.tick_params(which='both', **dict.fromkeys(sides, False))
  axes.grid(visible=False)
  axes.text(
    *(0.5, 0.5, NOTHING),
    transform=axes.transAxes,
    ha='center',
    va='center',
    color=GREY,
  )


def add_legend(
  figure: Any,
  order: Iterable[str],
  paper: bool,
  marker: str = 'o',
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
      # A hollow marker is in the legend only if no panel has one of ours.
      if label not in handles or not is_hollow(handle):
        handles[label] = handle
  shown = {label: handles[label] for label in order if label in handles}
  if paper:
    shown[PAPER] = Line2D(
      [],
      [],
      linestyle='none',
      marker=marker,
      markersize=_SIZE + 1,
      color=GREY,
      markerfacecolor='white',
    )
  if shown:
    figure.legend(
      shown.values(),
      shown.keys(),
      loc='outside lower center',
      ncols=_columns(figure, list(shown)),
      frameon=False,
      fontsize=8,
      handlelength=2.4,
      columnspacing=1.4,
    )


def _columns(figure: Any, labels: Sequence[str]) -> int:
  """Returns how many labels to put side by side, so that rows are balanced."""
  inches = 0.55 + 0.065 * max(map(len, labels))  # Includes the legend's line.
  fitting = max(1, int(figure.get_figwidth() / inches))
  return math.ceil(len(labels) / math.ceil(len(labels) / fitting))


def is_hollow(handle: Any) -> bool:
  """Whether `draw_paper` drew the artist."""
  return getattr(handle, 'get_markerfacecolor', str)() == 'white'


def log_x(axes: Any, marks: Iterable[Mark]) -> None:
  """Makes x logarithmic, with readable ticks over any range.

  Raises:
    ValueError: a mark is at zero or below.
  """
  from matplotlib import ticker

  places = [m.x for m in marks if m.x is not None]
  if not places:
    return
  low, high = min(places), max(places)
  if low <= 0:
    raise ValueError(
      f'x is {low}, expected more than 0: the axis is logarithmic.'
    )
  axes.set_xscale('log')
  # A narrow range is padded so much that it has room for two ticks.
  pad = max((high / low) ** 0.06, 2 if high / low < 4 else 1.15)
  axes.set_xlim(low / pad, high * pad)
  decades = high / low >= 30
  subs = (1,) if high / low >= 3000 else (1, 3) if decades else (1, 2, 5)
  axes.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
  axes.xaxis.set_minor_formatter(ticker.NullFormatter())
  if low >= 1e-2 and high < 1e5:
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  else:
    axes.xaxis.set_major_formatter(
      ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))
    )
