"""Guards: all plots have legible axes, legends and styles, and are written."""

import cv2
import pytest

from tests.paper import drawn
from vit_jax.compare import drawing
from vit_jax.paper import numbers, plots
from vit_jax.paper.numbers.panels import PANELS
from vit_jax.paper.numbers.values import Point, Value
from vit_jax.paper.plots import chart

NUMBER = drawn.number(0.5, 0.6)
ALL = {
  'figure2': ({'ViT-B/16': {'Natural': NUMBER}}, {}),
  'figure3': (
    {('ViT-B/16', 'JFT-300M'): NUMBER, ('BiT-R50x1', 'ImageNet'): NUMBER},
    {'data': ('ImageNet', 'ImageNet-21k', 'JFT-300M')},
  ),
  'figure4': ({('ViT-B/16', 300_000_000): NUMBER}, {}),
  'figure5': ({'run': ('Hybrid', 100.0, {'Average-5': NUMBER})}, {}),
  'figure8': ({('Width MLP', 1.0): {'ImageNet 5shot': NUMBER}}, {}),
  'figure9': ({'CLS-Token, lr=8e-4': [(1, NUMBER)]}, {}),
  'figure13': ({'ViT-B/16': (224.0, 800.0, NUMBER)}, {}),
}


@pytest.mark.parametrize('name', ALL)
def test_empty_figures_say_no_results_yet(name):
  _, options = ALL[name]
  figure = getattr(plots, name)({}, **options)
  assert drawn.texts(figure) == [['no results yet']] * len(PANELS[name])
  assert not figure.legends
  figure.draw_without_rendering()
  for axes in figure.axes:
    labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    assert not any(t.get_visible() and t.get_text() for t in labels)
  rows = getattr(plots, f'{name}_rows')({}, **options)
  assert drawn.csv(rows) == [drawn.HEADER]


PAPERS = {
  'figure2': Point('ViT-B/16', 'natural', Value(80.0), 'natural'),
  'figure3': Point('ViT-B/16', 'ImageNet', Value(80.0)),
  'figure4': Point('ViT-B/16', 9e6, Value(80.0)),
  'figure5': Point('ViT', 100.0, Value(80.0), 'ImageNet'),
  'figure8': Point('All', 2.0, Value(0.8), 'Average 5shot'),
  'figure9': Point('GAP, lr=8e-4', 7, Value(80.0)),
  'figure13': Point('ViT-B/16', 224.0, Value(0.8), 'left'),
}


@pytest.mark.parametrize('name', ALL)
def test_points_of_the_paper_are_drawn_unless_overlay_is_off(name):
  data, options = ALL[name]
  for overlay in (True, False):
    figure = getattr(plots, name)(
      data, **options, paper=[PAPERS[name]], overlay=overlay
    )
    shown = [y for axes in figure.axes for _, y in drawn.paper(axes)]
    assert shown == [PAPERS[name].y.value] * overlay
    assert ('paper' in drawn.legend(figure)) == overlay


@pytest.mark.parametrize('panel', ['ImageNet 5shot', 'Average 5shot'])
def test_the_legend_prefers_our_marker_to_the_papers(panel):
  points = {('Width', 1.0): {'ImageNet 5shot': NUMBER}}
  paper = [
    Point('Width', 2.0, Value(0.5), panel),
    Point('Depth', 2.0, Value(0.5), panel),
  ]
  figure = plots.figure8(points, paper)
  assert drawn.legend(figure) == ['Depth', 'Width', 'paper']
  handles = figure.legends[0].legend_handles
  assert [chart.is_hollow(handle) for handle in handles] == [True, False, True]


@pytest.mark.parametrize('length, columns', [(5, 3), (20, 2), (45, 1)])
def test_legends_have_as_many_columns_as_fit(length, columns):
  curves = {letter * length: [(1, NUMBER)] for letter in 'abcdef'}
  figure = plots.figure9(curves)
  figure.draw_without_rendering()
  box = figure.legends[0].get_window_extent()
  assert 0 < box.x0 < box.x1 < figure.bbox.width
  places = {text.get_window_extent().x0 for text in figure.legends[0].texts}
  assert len(places) == columns


def test_points_of_the_paper_are_rings_around_ours():
  paper = [Point('ViT-B/16', 300e6, Value(0.55))]
  figure = plots.figure4(ALL['figure4'][0], paper=paper)
  ours, papers = (
    next(x for x in figure.axes[0].lines if x.get_label() == label)
    for label in ('ViT-B/16', '_paper')
  )
  assert papers.get_zorder() < ours.get_zorder()
  assert papers.get_markersize() == ours.get_markersize() + 2


@pytest.mark.parametrize('name', ALL)
def test_saved_figures_are_not_cropped(name, tmp_path):
  data, options = ALL[name]
  options = {**options, 'paper': numbers.FIGURES[name]}
  figure = getattr(plots, name)(data, **options)
  rows = getattr(plots, f'{name}_rows')(data, **options)
  drawing.save(figure, tmp_path / name, rows)
  for suffix, start in (('png', b'\x89PNG'), ('pdf', b'%PDF'), ('csv', b'sou')):
    content = (tmp_path / f'{name}.{suffix}').read_bytes()
    assert content.startswith(start)
    assert len(content) > 100
  picture = cv2.imread(str(tmp_path / f'{name}.png'))
  edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
  assert all((edge == 255).all() for edge in edges)
  # The legend is below all axes and their labels.
  for legend in figure.legends:
    figure.draw_without_rendering()
    top = legend.get_window_extent().y1
    assert all(top <= axes.get_tightbbox().y0 for axes in figure.axes)


def test_each_series_looks_different():
  styles = chart.styles([f'ViT-{i}' for i in range(20)])
  looks = {(look['color'], look['marker']) for look in styles.values()}
  assert len(looks) == 20


@pytest.mark.parametrize(
  'places, labels',
  [
    ((1.0, 10.0), ['1', '2', '5', '10']),
    ((50.0, 4262.0), ['100', '300', '1000', '3000']),
    ((1.0, 9000.0), ['1', '10', '100', '1000', '10000']),
    ((20.0,), ['10', '20']),
  ],
)
def test_logarithmic_axes_have_legible_ticks(places, labels):
  points = {('All', x): {'ImageNet 5shot': drawn.number(0.5)} for x in places}
  figure = plots.figure8(points)
  figure.draw_without_rendering()
  axes = figure.axes[0]
  low, high = axes.get_xlim()
  assert [
    label.get_text()
    for label in axes.get_xticklabels()
    if low <= label.get_position()[0] <= high
  ] == labels
