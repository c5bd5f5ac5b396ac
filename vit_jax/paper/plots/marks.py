"""The points and bars of a figure as plain data, and rows of its CSV file."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from vit_jax.paper.numbers.panels import PANELS
from vit_jax.paper.numbers.values import Point
from vit_jax.paper.report import Number

COLUMNS = (
  *('source', 'panel', 'series', 'label', 'x', 'mean', 'std', 'n', 'note'),
)


@dataclasses.dataclass(frozen=True)
class Mark:
  """A point or a bar.

  Attributes:
    series: what the legend says.
    x: where it is; None if unknown: then it is not drawn.
    y: its height.
    std: half the length of its error bar; None if it has none.
    n: number of runs that it is the mean of; None if unknown.
    panel: title of the panel, in figures with several.
    label: the run, if each point of the series has its own.
    note: where it is from: our runs, or a place in the paper.
  """

  series: str
  x: float | str | None
  y: float
  std: float | None = None
  n: int | None = None
  panel: str = ''
  label: str = ''
  note: str = ''


def ours(
  series: str,
  x: float | str | None,
  number: Number,
  panel: str = '',
  label: str = '',
) -> Mark:
  """Returns the mark of a number of ours; arguments are those of `Mark`."""
  note = '; '.join(number.runs)
  n = len(number.values)
  return Mark(series, x, number.mean, number.std, n, panel, label, note)


def papers(
  points: Iterable[Point],
  series: Callable[[str], str] = str,
  panel: Callable[[str], str] = str,
) -> list[Mark]:
  """Returns the marks of the paper's points.

  Args:
    points: such as `numbers.FIGURES['figure5']`.
    series: a point's series -> what our figure calls it.
    panel: a point's panel -> what our figure calls it.
  """
  return [
    Mark(
      series(point.series),
      point.x,
      float(point.y.value),
      point.y.std,
      panel=panel(point.panel),
      label=point.label,
      note='; x: '.join(filter(None, [point.y.note, point.x_note])),
    )
    for point in points
  ]


def at(mark: Mark, x: float | str) -> Mark:
  """Returns the mark at another place."""
  return dataclasses.replace(mark, x=x)


def rows(ours: Sequence[Mark], paper: Sequence[Mark] = ()) -> pd.DataFrame:
  """Returns a row for each mark, with the columns of COLUMNS; ours are first.

  Unknown values are empty.
  """
  lines = [
    {'source': source, 'mean': mark.y, **dataclasses.asdict(mark)}
    for source, marks in (('ours', ours), ('paper', paper))
    for mark in marks
  ]
  frame = pd.DataFrame(lines, columns=list(COLUMNS))
  # Int64: counts stay whole numbers although some are unknown.
  return frame.astype({'n': 'Int64', 'std': float, 'x': object})


def series_of(*marks: Iterable[Mark]) -> list[str]:
  """Returns the series, in the order in which they first occur."""
  return list(dict.fromkeys(mark.series for some in marks for mark in some))


def panels_of(figure: str, marks: Iterable[Mark]) -> list[str]:
  """Returns the titles of a figure's panels.

  Args:
    figure: such as 'figure5'.
    marks: our marks.

  Returns:
    The paper's panels, even those that are still empty. If our marks have other
    panels, such as for a miniature's data sets, only the panels of our marks,
    in the order in which they occur.
  """
  titles = [panel.title for panel in PANELS[figure]]
  found = list(dict.fromkeys(mark.panel for mark in marks))
  return found if {*found} - {*titles} else titles


def check_names(
  what: str, names: Iterable[str], choices: Sequence[str]
) -> None:
  """Raises ValueError for a name that is not one of the choices; lists them."""
  unknown = [name for name in names if name not in choices]
  if unknown:
    raise ValueError(
      f'unknown {what} {", ".join(map(repr, dict.fromkeys(unknown)))}; '
      f'expected some of {", ".join(choices)}.'
    )
