"""What all figures have in common: their style, and the files they become.

matplotlib is an extra and slow to import, so it is imported when one draws.
"""

import functools
from collections.abc import Callable
from typing import Any

import pandas as pd
from etils import epath

from vit_jax.runtime import printable

SUFFIXES = ('.png', '.pdf', '.csv')
PIXELS_PER_INCH = 200
# Embedded as outlines of TrueType, as journals ask for.
_STYLE = {
  'font.size': 9,
  'axes.titlesize': 10,
  'axes.labelsize': 10,
  'pdf.fonttype': 42,
  'axes.linewidth': 0.6,
}


def check_matplotlib() -> None:
  """Raises ValueError if matplotlib is not installed."""
  try:
    import matplotlib  # noqa: F401
  except ImportError:
    raise ValueError(
      'figures need matplotlib: pip install "vit-paper-jax[plot]"'
    ) from None


def matplotlib() -> Any:
  """Returns the module; raises as `check_matplotlib` does."""
  check_matplotlib()
  import matplotlib

  return matplotlib


def literal(text: str) -> str:
  """A name for matplotlib, which reads text between two `$` as a formula."""
  return printable.name(text).replace('$', r'\$')


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a function draw in `_STYLE`, and leaves the caller's as it is."""

  @functools.wraps(draw)
  def in_style(*args, **kwargs):
    with matplotlib().rc_context(_STYLE):
      return draw(*args, **kwargs)

  return in_style


def new_figure(size: tuple[float, float], layout: str = 'constrained') -> Any:
  """An empty figure of a size in inches, that no window system knows of."""
  from matplotlib.figure import Figure

  return Figure(figsize=size, layout=layout)


@styled
def save(figure: Any, path_stem: epath.PathLike, data: pd.DataFrame) -> None:
  """Writes PATH_STEM.png, .pdf and .csv, replacing what is there.

  Args:
    figure: a `matplotlib.figure.Figure`.
    path_stem: without the ending; its folder is made.
    data: the numbers that are drawn.
  """
  stem = epath.Path(path_stem)
  stem.parent.mkdir(parents=True, exist_ok=True)
  png, pdf, csv = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
  for path in (png, pdf):
    with path.open('wb') as file:
      figure.savefig(
        file, format=path.suffix[1:], dpi=PIXELS_PER_INCH, facecolor='white'
      )
  csv.write_text(data.to_csv(index=False))
