"""Guards: Figures 3, 4 and 9 show our numbers and the paper's, no others."""

import math

import numpy as np
import pytest

from tests.paper import drawn
from vit_jax.paper import numbers, plots
from vit_jax.paper.numbers.values import Point, Value

DATA = ('ImageNet', 'ImageNet-21k', 'JFT-300M')

# Figure 3. --------------------------------------------------------------------

POINTS_3 = {
  ('ViT-L/16', 'ImageNet'): drawn.number(76.0),
  ('ViT-L/16', 'ImageNet-21k'): drawn.number(85.0, 86.0),
  ('ViT-B/32', 'ImageNet'): drawn.number(73.0),
  ('ViT-B/32', 'JFT-300M'): drawn.number(80.0),
  ('BiT-R50x1', 'ImageNet'): drawn.number(77.0),
  ('BiT-R101x1', 'ImageNet'): drawn.number(79.0),
  ('BiT-R152x2', 'ImageNet'): drawn.number(81.0),
  ('BiT-R50x1', 'ImageNet-21k'): drawn.number(80.0),
  ('BiT-R152x2', 'ImageNet-21k'): drawn.number(84.0),
}


def _area(axes):
  """Returns the corners of the areas, as sets."""
  return [
    {(round(x, 6), y) for x, y in path.vertices}
    for area in axes.collections
    if not hasattr(area, 'get_segments')
    for path in area.get_paths()
  ]


def test_figure_3_draws_vits_as_lines_with_markers_by_model_size():
  figure = plots.figure3(POINTS_3, data=DATA)
  axes = figure.axes[0]
  assert axes.get_xlabel() == 'Pre-training data'
  assert axes.get_ylabel() == 'ImageNet top-1 accuracy (%)'
  assert [t.get_text() for t in axes.get_xticklabels()] == list(DATA)
  # The models are shifted sideways, so that their points do not overlap.
  assert drawn.lines(axes) == {
    'ViT-B/32': [pytest.approx((-0.015, 73)), pytest.approx((1.985, 80))],
    'ViT-L/16': [pytest.approx((0.015, 76)), pytest.approx((1.015, 85.5))],
  }
  base, large = (line for line in axes.lines if len(line.get_xdata()) == 3)
  assert base.get_markersize() < large.get_markersize()
  assert np.isnan(base.get_ydata()).tolist() == [False, True, False]
  half = math.sqrt(0.5)
  assert drawn.error_bars(axes) == [
    pytest.approx((1.015, 85.5 - half, 85.5 + half))
  ]
  assert drawn.legend(figure) == ['BiT', 'ViT-B/32', 'ViT-L/16']


def test_figure_3_shades_between_the_worst_and_the_best_bit():
  axes = plots.figure3(POINTS_3, data=DATA).axes[0]
  assert _area(axes) == [
    {
      *((-0.15, 77), (0, 77), (1, 80), (1.15, 80)),
      *((-0.15, 81), (0, 81), (1, 84), (1.15, 84)),
    }
  ]


def test_figure_3_csv_rows_match_its_points():
  points = dict([*POINTS_3.items()][:2])
  paper = numbers.FIGURES['figure3'][:1]
  assert drawn.csv(plots.figure3_rows(points, data=DATA, paper=paper)) == [
    drawn.HEADER,
    'ours,,ViT-L/16,,ImageNet,76.0,,1,run0',
    'ours,,ViT-L/16,,ImageNet-21k,85.5,0.7071067811865476,2,run0; run1',
    'paper,,ViT-B/16,,ImageNet,77.91,,,Table 5',
  ]


def test_figure_3_refuses_unknown_data():
  with pytest.raises(ValueError, match=r"'JFT-300M'; expected some of ImageN"):
    plots.figure3(POINTS_3, data=DATA[:2])


# Figure 4. --------------------------------------------------------------------

POINTS_4 = {
  ('ViT-B/32', 30_000_000): drawn.number(40.0, 42.0),
  ('ViT-B/32', 9_000_000): drawn.number(30.0),
  ('BiT-R50x1', 9_000_000): drawn.number(35.0),
}


def test_figure_4_draws_lines_over_the_logarithm_of_images():
  paper = (Point('BiT-R50x1', 9e6, Value(36.0, note='read')),)
  figure = plots.figure4(POINTS_4, paper=paper)
  axes = figure.axes[0]
  assert axes.get_xscale() == 'log'
  assert axes.get_xlabel() == 'Number of JFT-300M images'
  assert axes.get_ylabel() == 'Linear 5-shot ImageNet top-1 (%)'
  figure.draw_without_rendering()
  assert [t.get_text() for t in axes.get_xticklabels()] == ['9M', '30M']
  assert drawn.lines(axes) == {
    'ViT-B/32': [(9e6, 30), (3e7, 41)],
    'BiT-R50x1': [(9e6, 35)],
  }
  half = math.sqrt(2)
  assert drawn.error_bars(axes) == [pytest.approx((3e7, 41 - half, 41 + half))]
  assert drawn.paper(axes) == [(9e6, 36)]
  assert [
    line.get_linestyle()
    for line in axes.lines
    if line.get_label() in ('ViT-B/32', 'BiT-R50x1')
  ] == ['-', '--']
  assert drawn.legend(figure) == ['ViT-B/32', 'BiT-R50x1', 'paper']


def test_zero_is_refused_on_a_logarithmic_axis():
  with pytest.raises(ValueError, match='x is 0, expected more than 0'):
    plots.figure4({('ViT-B/32', 0): drawn.number(40.0)})


# Figure 9. --------------------------------------------------------------------

CURVES = {
  'CLS-Token, lr=8e-4': [
    (1, drawn.number(30.0)),
    (2, drawn.number(40.0, 44.0)),
  ],
  'GAP, lr=3e-4': [(1, drawn.number(31.0))],
  'GAP, lr=8e-4': [],
}


def test_figure_9_has_a_curve_for_each_head_and_rate():
  figure = plots.figure9(CURVES, (Point('GAP, lr=3e-4', 7, Value(58.0)),))
  axes = figure.axes[0]
  assert axes.get_xlabel() == 'Epochs of training'
  assert axes.get_ylabel() == 'Linear 5-shot ImageNet top-1 (%)'
  assert drawn.lines(axes) == {
    'CLS-Token, lr=8e-4': [(1, 30), (2, 42)],
    'GAP, lr=3e-4': [(1, 31)],
  }
  half = math.sqrt(8)
  assert drawn.error_bars(axes) == [pytest.approx((2, 42 - half, 42 + half))]
  assert drawn.paper(axes) == [(7, 58)]
  assert drawn.legend(figure) == ['CLS-Token, lr=8e-4', 'GAP, lr=3e-4', 'paper']
