"""The style that all figures share, and the files that they are saved to.

matplotlib is an optional extra and slow to import, so only a function that
draws imports it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pandas as pd
from etils import epath

from vit_jax.runtime import installed, printable

SUFFIXES = ('.png', '.pdf', '.csv')
PIXELS_PER_INCH = 200
# Font type 42 embeds TrueType outlines, as journals ask for.
_STYLE = {
  'font.size': 9,
  'axes.titlesize': 10,
  'axes.labelsize': 10,
  'pdf.fonttype': 42,
  'axes.linewidth': 0.6,
}


def check_matplotlib() -> None:
  """Raises ValueError if matplotlib is not installed."""
  installed.require('matplotlib', extra='plot', what='A figure')


def matplotlib() -> Any:
  """Returns the module; raises ValueError if it is not installed."""
  check_matplotlib()
  import matplotlib

  return matplotlib


def literal(text: str) -> str:
  """Escapes a name, as matplotlib reads text between two `$` as a formula."""
  return printable.name(text).replace('$', r'\$')


@contextlib.contextmanager
def in_style() -> Iterator[None]:
  """Draws in the style of all figures, then restores the caller's style."""
  with matplotlib().rc_context(_STYLE):
    yield


# Makes a function draw in the style of all figures: `@styled`.
styled = in_style()


def new_figure(size: tuple[float, float], layout: str = 'constrained') -> Any:
  """Returns an empty figure of a size in inches, which opens no window."""
  from matplotlib.figure import Figure

  return Figure(figsize=size, layout=layout)


@styled
def save(
  figure: Any,
  path_stem: epath.PathLike,
  data: pd.DataFrame,
  *,
  mark: str = '',
) -> None:
  """Writes PATH_STEM.png, .pdf and .csv, replacing what is there.

  Args:
    figure: a `matplotlib.figure.Figure`.
    path_stem: the path without its suffix; its folder is created.
    data: the numbers in the figure.
    mark: what nobody may miss about the figure; it is printed above it.
  """
  # A mark lies outside the figure, which it must not squeeze.
  around = {'bbox_inches': 'tight', 'pad_inches': 0.05} if mark else {}
  if mark:
    figure.text(
      0.5, 1.01, mark, ha='center', va='bottom', weight='bold', size=10
    )
  stem = epath.Path(path_stem)
  stem.parent.mkdir(parents=True, exist_ok=True)
  png, pdf, csv = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
  for path in (png, pdf):
    with path.open('wb') as file:
      figure.savefig(
        file,
        format=path.suffix[1:],
        dpi=PIXELS_PER_INCH,
        facecolor='white',
        **around,
      )
  csv.write_text(data.to_csv(index=False))
