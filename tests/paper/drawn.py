"""Helpers that make numbers for figures and read what figures show."""

from vit_jax.paper.plots import chart
from vit_jax.paper.report import Number

HEADER = 'source,panel,series,label,x,mean,std,n,note'


def number(*values):
  return Number(values, tuple(f'run{i}' for i in range(len(values))))


def lines(axes):
  """Returns label -> points of the lines that are not hollow, without gaps."""
  return {
    line.get_label(): [(x, y) for x, y in line.get_xydata() if y == y]
    for line in axes.lines
    if line.get_label()[0] != '_' and not chart.is_hollow(line)
  }


def paper(axes):
  """Returns the paper's points, which are hollow, sorted."""
  hollow = [line for line in axes.lines if chart.is_hollow(line)]
  return sorted(tuple(xy) for line in hollow for xy in line.get_xydata())


def error_bars(axes):
  """Returns the ends of the error bars: (x, low, high), sorted."""
  return sorted(
    (segment[0][0], segment[0][1], segment[1][1])
    for bars in axes.collections
    if hasattr(bars, 'get_segments')
    for segment in bars.get_segments()
  )


def legend(figure):
  return [text.get_text() for legend in figure.legends for text in legend.texts]


def texts(figure):
  return [[text.get_text() for text in axes.texts] for axes in figure.axes]


def csv(rows):
  return rows.to_csv(index=False).split('\n')[:-1]
