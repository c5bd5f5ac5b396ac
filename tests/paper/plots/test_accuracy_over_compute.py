"""Guards: Figures 5, 8 and 13 show our numbers and the paper's, no others."""

import math

import pytest

from tests.paper import drawn
from vit_jax.paper import numbers, plots

# Figure 5. --------------------------------------------------------------------

POINTS_5 = {
  'ViT-B/32, 7 epochs': (
    *('Transformer', 55.0),
    {'Average-5': drawn.number(92.0, 93.0), 'ImageNet': drawn.number(80.0)},
  ),
  'BiT-R50x1, 7 epochs': ('ResNet', 50.0, {'ImageNet': drawn.number(77.0)}),
}


def test_figure_5_shows_its_families_in_two_panels():
  figure = plots.figure5(POINTS_5, numbers.FIGURES['figure5'])
  left, right = figure.axes
  assert [axes.get_title() for axes in figure.axes] == ['Average-5', 'ImageNet']
  assert left.get_ylabel() == 'Transfer accuracy (%)'
  for axes in (left, right):
    assert axes.get_xscale() == 'log'
    assert axes.get_xlabel() == 'Pre-training compute (exaFLOPs)'
    assert len(drawn.paper(axes)) == 18
  assert drawn.lines(left) == {'Transformer (ViT)': [(55, 92.5)]}
  assert drawn.lines(right) == {
    'Transformer (ViT)': [(55, 80)],
    'ResNet (BiT)': [(50, 77)],
  }
  half = math.sqrt(0.5)
  assert drawn.error_bars(left) == [
    pytest.approx((55, 92.5 - half, 92.5 + half))
  ]
  assert (4262, 88.08) in drawn.paper(right)
  looks = {(x.get_color(), x.get_marker()) for x in right.lines}
  assert len(looks) == 3
  assert drawn.legend(figure) == [
    *('Transformer (ViT)', 'ResNet (BiT)', 'Hybrid', 'paper')
  ]


def test_figure_5_refuses_unknown_families():
  with pytest.raises(ValueError, match="'CNN'; expected some of Transformer, "):
    plots.figure5({'run': ('CNN', 1.0, {})})


# Figure 8. --------------------------------------------------------------------

POINTS_8 = {
  ('Width', 4.0): {'ImageNet 5shot': drawn.number(0.4)},
  ('All', 4.0): {'ImageNet 5shot': drawn.number(0.5, 0.6)},
  ('All', 1.0): {
    'ImageNet 5shot': drawn.number(0.3),
    'Average 5shot': drawn.number(0.45),
  },
}


def test_figure_8_has_a_line_for_each_dimension_that_is_scaled():
  figure = plots.figure8(POINTS_8)
  left, right = figure.axes
  assert [axes.get_title() for axes in figure.axes] == [
    *('ImageNet 5shot', 'Average 5shot')
  ]
  assert left.get_ylabel() == 'Accuracy'
  assert {axes.get_xlabel() for axes in figure.axes} == {'Relative compute'}
  assert {axes.get_xscale() for axes in figure.axes} == {'log'}
  assert drawn.lines(left) == {
    'All': [(1, 0.3), (4, pytest.approx(0.55))],
    'Width': [(4, 0.4)],
  }
  assert drawn.lines(right) == {'All': [(1, 0.45)]}
  half = math.sqrt(0.005)
  assert drawn.error_bars(left) == [
    pytest.approx((4, 0.55 - half, 0.55 + half))
  ]
  assert drawn.legend(figure) == ['All', 'Width']


# Figure 13. -------------------------------------------------------------------

POINTS_13 = {
  'ViT-B/32': (55.0, 800.0, drawn.number(0.55, 0.57)),
  'Axial-ViT-B/32': (108.0, None, drawn.number(0.58)),
  'AxialResNet50': (None, 20.0, drawn.number(0.56)),
}


def test_figure_13_has_panels_over_compute_and_speed():
  figure = plots.figure13(POINTS_13, numbers.FIGURES['figure13'])
  left, right = figure.axes
  assert left.get_xlabel() == 'Pre-training compute (exaFLOPs)'
  assert right.get_xlabel() == 'Peak speed (images/s/core)'
  assert left.get_ylabel() == 'Linear 5-shot ImageNet top-1'
  assert {axes.get_xscale() for axes in figure.axes} == {'log'}
  assert left.get_ylim() == right.get_ylim()
  assert drawn.lines(left) == {
    'ViT-B/32': [(55, pytest.approx(0.56))],
    'Axial-ViT-B/32': [(108, 0.58)],
  }
  assert drawn.lines(right) == {
    'ViT-B/32': [(800, pytest.approx(0.56))],
    'AxialResNet50': [(20, 0.56)],
  }
  half = math.sqrt(0.0002)
  assert drawn.error_bars(right) == [
    pytest.approx((800, 0.56 - half, 0.56 + half))
  ]
  # AxialResNet50's compute is not known.
  assert drawn.paper(left) == [
    *((50, 0.5), (55, 0.5625), (108, 0.5875), (224, 0.6375), (426, 0.65))
  ]
  assert drawn.paper(right) == []
