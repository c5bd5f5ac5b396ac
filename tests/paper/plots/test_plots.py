"""Guards: all plots have legible axes, legends and styles, and are written."""

import cv2
import pytest

from tests.paper import drawn
from vit_jax.pages import drawing
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


@pytest.mark.parametrize('name', ['figure2', 'figure3'])
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
