"""Guards: bars show our numbers and the paper's, no others."""

import math

import pytest

from tests.paper import drawn
from vit_jax.paper import plots
from vit_jax.paper.numbers.values import Point, Value

BARS = {
  'A': {
    'VTAB (19 tasks)': drawn.number(70.0, 74.0),
    'Natural': drawn.number(80.0),
  },
  'B': {'VTAB (19 tasks)': drawn.number(60.0)},
}
PAPERS_BARS = (
  Point('B', 'VTAB', Value(66.0, 1.5, 'Table 2'), 'VTAB'),
  Point('C', 'structured', Value(50.0, note='Table 9'), 'structured'),
)


def test_figure_2_has_a_bar_for_each_model_and_group():
  figure = plots.figure2(BARS, PAPERS_BARS)
  assert [axes.get_title() for axes in figure.axes] == [
    *('VTAB (19 tasks)', 'Natural', 'Specialized', 'Structured')
  ]
  assert figure.axes[0].get_ylabel() == 'Accuracy (%)'
  bars = [
    [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in a.patches]
    for a in figure.axes
  ]
  assert bars == [[(0, 72), (1, 60)], [(0, 80)], [], []]
  spread = math.sqrt(8)
  assert drawn.error_bars(figure.axes[0]) == [
    pytest.approx((0, 72 - spread, 72 + spread)),
    pytest.approx((1.22, 64.5, 67.5)),
  ]
  assert [drawn.paper(axes) for axes in figure.axes] == [
    *([(1.22, 66)], [], [], [(2, 50)])
  ]
  assert drawn.texts(figure) == [[], [], ['no results yet'], []]
  assert drawn.legend(figure) == ['A', 'B', 'C', 'paper']


def test_figure_2_refuses_unknown_groups():
  with pytest.raises(ValueError, match=r"'natural'; expected .*Natural, Spec"):
    plots.figure2({'A': {'natural': drawn.number(1.0)}})


MEMORY = {
  'BiT-R50x1': ('ResNet', drawn.number(0.05)),
  'ViT-B/32': ('Transformer', drawn.number(0.02)),
  'R50+ViT-B/32': ('Hybrid', drawn.number(0.08)),
  'BiT-R50x2': ('ResNet', drawn.number(0.1)),
}


def test_memory_has_a_bar_for_each_model_in_the_colour_of_its_family():
  figure = plots.training_memory(MEMORY)
  [axes] = figure.axes
  assert [bar.get_height() for bar in axes.patches] == [0.05, 0.02, 0.08, 0.1]
  assert [text.get_text() for text in axes.get_xticklabels()] == [*MEMORY]
  assert axes.get_ylim()[0] == 0
  first, vit, hybrid, last = (bar.get_facecolor() for bar in axes.patches)
  assert first == last
  assert len({first, vit, hybrid}) == 3
  assert drawn.legend(figure) == ['Transformer (ViT)', 'ResNet (BiT)', 'Hybrid']
  assert drawn.texts(plots.training_memory({})) == [['no results yet']]
  assert drawn.csv(plots.training_memory_rows(MEMORY))[:2] == [
    drawn.HEADER,
    'ours,,ResNet (BiT),,BiT-R50x1,0.05,,1,run0',
  ]
