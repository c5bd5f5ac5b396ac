"""Guards: figures show our numbers and the paper's, legibly, and no others."""

import math

import cv2
import numpy as np
import pytest

from tests.paper.made import number
from vit_jax.paper import plots
from vit_jax.paper.numbers import Value
from vit_jax.paper.runs import Results

LABELS = {'x_label': 'compute', 'y_label': 'accuracy'}


def _is_hollow(line):
  return line.get_markerfacecolor() == 'white'


def _lines(axes):
  """Returns label -> points of the lines that are not hollow."""
  return {
    line.get_label(): [(x, y) for x, y in line.get_xydata() if y == y]
    for line in axes.lines
    if line.get_label()[0] != '_' and not _is_hollow(line)
  }


def _paper(axes):
  """Returns the paper's points, which are hollow, sorted."""
  hollow = [line for line in axes.lines if _is_hollow(line)]
  return sorted(tuple(map(float, xy)) for h in hollow for xy in h.get_xydata())


def _error_bars(axes):
  """Returns the ends of the error bars: (x, low, high), sorted."""
  return sorted(
    (segment[0][0], segment[0][1], segment[1][1])
    for bars in axes.collections
    if hasattr(bars, 'get_segments')
    for segment in bars.get_segments()
  )


def _legend(figure):
  return [text.get_text() for legend in figure.legends for text in legend.texts]


POINTS = (
  *(('ViT-B/32', 30.0, number(40.0, 42.0)), ('ViT-B/32', 9.0, number(30.0))),
  *(('BiT-R50x1', 9.0, number(35.0)), ('BiT-R50x1', 9.0, Value(36.0, 0.5))),
  *(('Axial', 20.0, Value(33.0)), ('ViT-B/32', None, number(1.0))),
  ('ViT-B/32', 50.0, None),
)


def test_lines_have_the_points_error_bars_and_series():
  figure = plots.draw(plots.frame(POINTS), **LABELS, log_x=True)
  [axes] = figure.axes
  assert _lines(axes) == {
    'ViT-B/32': [(9, 30), (30, 41)],
    'BiT-R50x1': [(9, 35)],
  }
  half = math.sqrt(2)
  bars = [(9, 35.5, 36.5), (30, 41 - half, 41 + half)]
  assert _error_bars(axes) == [pytest.approx(bar) for bar in bars]
  assert _paper(axes) == [(9, 36), (20, 33)]
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('compute', 'accuracy')
  assert axes.get_xscale() == 'log'
  styles = {one.get_label(): one.get_linestyle() for one in axes.lines}
  assert (styles['ViT-B/32'], styles['BiT-R50x1']) == ('-', '--')
  assert _legend(figure) == ['ViT-B/32', 'BiT-R50x1', 'Axial', 'paper']


def test_panels_have_their_own_marks_labels_and_titles():
  points = (
    ('A', 1.0, number(0.3), 'left', 'run one'),
    ('A', 4.0, number(0.5), 'left', 'run two'),
    ('B', 64.0, number(2000.0), 'right'),
  )
  figure = plots.draw(
    plots.frame(points),
    x_label=('one', 'other'),
    y_label=('up', 'down'),
    panels={'left': 'L', 'right': 'R'},
    series=['B'],
    log_y=True,
    scatter=True,
    names=str.upper,
  )
  left, right = figure.axes
  assert (left.get_title(), right.get_title()) == ('L', 'R')
  assert (left.get_xlabel(), right.get_xlabel()) == ('one', 'other')
  assert (left.get_ylabel(), right.get_ylabel()) == ('up', 'down')
  assert _lines(left) == {'A': [(1, 0.3), (4, 0.5)]}
  assert _lines(right) == {'B': [(64, 2000)]}
  assert {axes.get_yscale() for axes in figure.axes} == {'log'}
  assert {line.get_linestyle() for line in left.lines} == {'None'}
  assert [text.get_text() for text in left.texts] == ['RUN ONE', 'RUN TWO']
  assert _legend(figure) == ['B', 'A']


def test_ticks_are_short_numbers():
  marks = plots.frame(('A', x, number(1.0)) for x in (9e6, 3e7))
  figure = plots.draw(marks, **LABELS, log_x=True, x_ticks=[9e6, 3e7])
  figure.draw_without_rendering()
  ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
  assert ticks == ['9M', '30M']


@pytest.mark.parametrize('others', [(), (1700.0,), (300.0, 2e4)])
def test_logarithmic_axes_show_all_points_and_have_ticks(others):
  # The error bar alone would have no width.
  points = [('A', 1650.6, number(0.7, 0.72))]
  points += [('A', x, number(0.5)) for x in others]
  [axes] = plots.draw(plots.frame(points), **LABELS, log_x=True).axes
  low, high = axes.get_xlim()
  assert all(1.1 * low < x < high / 1.1 for x in (1650.6, *others))
  assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2


def test_series_may_stand_side_by_side():
  points = (
    *(('A', 'all', number(70.0, 74.0), 'all'), ('B', '', number(60.0), 'all')),
    *(('A', 'some', number(80.0), 'some'), ('B', 'all', Value(66.0), 'all')),
    ('C', 'few', Value(50.0), 'few'),
  )
  figure = plots.draw(
    plots.frame(points),
    y_label='Accuracy (%)',
    panels={name: name for name in ('all', 'some', 'none', 'few')},
    scatter=True,
    abreast=True,
  )
  assert [_lines(axes) for axes in figure.axes] == [
    *({'A': [(0, 72)], 'B': [(1, 60)]}, {'A': [(0, 80)]}, {}, {})
  ]
  assert [_paper(axes) for axes in figure.axes] == [
    [(1, 66)],
    [],
    [],
    [(2, 50)],
  ]
  said = [[t.get_text() for t in axes.texts] for axes in figure.axes]
  assert said == [[], [], ['no results yet'], []]
  assert _legend(figure) == ['A', 'B', 'C', 'paper']


def test_names_may_stand_on_the_x_axis():
  marks = plots.frame(('A', x, number(1.0)) for x in ('much', 'little'))
  figure = plots.draw(marks, **LABELS, x_names=['little', 'much'])
  figure.draw_without_rendering()
  [axes] = figure.axes
  assert [t.get_text() for t in axes.get_xticklabels()] == ['little', 'much']
  assert _lines(axes) == {'A': [(0, 1), (1, 1)]}


def test_empty_figures_say_no_results_yet():
  figure = plots.draw(plots.frame([]), **LABELS, panels={'a': 'A', 'b': 'B'})
  said = [[t.get_text() for t in axes.texts] for axes in figure.axes]
  assert said == [['no results yet']] * 2
  assert not figure.legends
  figure.draw_without_rendering()
  for axes in figure.axes:
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    assert not any(t.get_visible() and t.get_text() for t in ticks)


def test_rows_are_the_marks_ours_first():
  points = (
    ('B', 9.0, Value(66.0, 1.5, note='Table 2'), '', '', 'Table 6'),
    ('A', 'x', number(70.0, 74.0), 'p', 'l'),
  )
  text = plots.frame(points).to_csv(index=False)
  assert text.splitlines() == [
    'source,panel,series,label,x,mean,std,n,note',
    'ours,p,A,l,x,72.0,2.8284271247461903,2,run0; run1',
    'paper,,B,,9.0,66.0,1.5,,Table 2; x: Table 6',
  ]
  assert plots.frame([]).to_csv(index=False).count('\n') == 1


def test_saved_figures_are_not_cropped(tmp_path):
  folder = tmp_path / 'figures'
  picture = plots.picture(
    *('it', 'T', 'C', POINTS, folder, Results([], {}, scale='mini')), **LABELS
  )
  assert (picture.stem, picture.caption) == ('figures/it', 'C')
  for suffix, start in (('png', b'\x89PNG'), ('pdf', b'%PDF'), ('csv', b'sou')):
    assert (folder / f'it.{suffix}').read_bytes().startswith(start)
  pixels = cv2.imread(str(folder / 'it.png'))
  for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
    assert np.all(edge == 255)
  # In miniature, the paper's points are in the file only.
  assert 'paper' in (folder / 'it.csv').read_text()


def test_the_legend_is_below_the_axes():
  figure = plots.draw(plots.frame(POINTS), **LABELS)
  figure.draw_without_rendering()
  [legend], [axes] = figure.legends, figure.axes
  assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0


def test_each_series_looks_different():
  looks = plots.styles([f'ViT-{i}' for i in range(20)]).values()
  assert len({(look['color'], look['marker']) for look in looks}) == 20
