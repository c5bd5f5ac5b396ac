"""Guards: the figures' points are complete, have a source, and fit the axes."""

import re

import pytest

from vit_jax import models
from vit_jax.paper import numbers

F = numbers.FIGURES


def _points(figure, **attributes):
  return [
    point
    for point in F[figure]
    if all(getattr(point, key) == value for key, value in attributes.items())
  ]


def test_figures_have_the_known_number_of_points():
  assert {name: len(points) for name, points in F.items()} == {
    **{f'figure{i}': 0 for i in (1, 4, 6, 7, 8, 9, 10, 11, 12, 14)},
    **{'figure2': 10, 'figure3': 14, 'figure5': 36, 'figure13': 6},
  }


def test_each_point_names_its_source():
  for points in F.values():
    for point in points:
      assert point.y.note
      is_number = isinstance(point.x, float)
      assert bool(point.x_note) == is_number


def test_bars_of_figure_2():
  bars = {
    (point.series, point.panel): round(point.y.value, 2)
    for point in F['figure2']
  }
  assert bars == {
    ('ViT-H/14, JFT-300M', 'VTAB'): 77.63,
    ('ViT-H/14, JFT-300M', 'natural'): 86.69,
    ('ViT-H/14, JFT-300M', 'specialized'): 87.0,
    ('ViT-H/14, JFT-300M', 'structured'): pytest.approx(65.025, abs=0.006),
    ('BiT-R152x4, JFT-300M', 'VTAB'): 76.29,
    ('VIVI-Ex-100%, R50x3', 'VTAB'): 70.5,
    ('S4L, R50x1', 'VTAB'): 68.0,
    ('S4L, R50x1', 'natural'): 73.6,
    ('S4L, R50x1', 'specialized'): 83.1,
    ('S4L, R50x1', 'structured'): 55.5,
  }
  assert _points('figure2', panel='VTAB')[1].y.std == 1.7


def test_s4l_groups_of_figure_2_average_to_its_mean():
  mean, *groups = (
    point.y.value for point in _points('figure2', series='S4L, R50x1')
  )
  total = sum(
    size * group for size, group in zip((7, 4, 8), groups, strict=True)
  )
  assert total / 19 == pytest.approx(mean, abs=0.05)


def test_figure_3_equals_the_imagenet_rows_of_table_5():
  points = {(p.series, p.x): p.y.value for p in F['figure3']}
  assert points['ViT-B/16', 'ImageNet'] == 77.91
  assert points['ViT-L/32', 'ImageNet-21k'] == 80.99
  assert points['ViT-H/14', 'JFT-300M'] == 88.04
  assert ('ViT-H/14', 'ImageNet') not in points


def test_figure_5_has_the_runs_of_table_6_in_two_panels():
  for panel in ('Average-5', 'ImageNet'):
    points = _points('figure5', panel=panel)
    assert tuple(p.label for p in points) == numbers.TABLES['table6'].rows
    assert [p.series for p in points] == (
      6 * ['ViT'] + 7 * ['ResNet (BiT)'] + 5 * ['Hybrid']
    )
  first, last = (_points('figure5', panel='Average-5')[i] for i in (0, -1))
  assert (first.x, round(first.y.value, 2)) == (55, 92.50)
  assert (last.x, round(last.y.value, 2)) == (1668, 95.36)
  first, last = (_points('figure5', panel='ImageNet')[i] for i in (0, -1))
  assert (first.x, first.y.value) == (55, 80.73)
  assert (last.x, last.y.value) == (1668, 87.12)


def test_figure_5_warns_of_the_misprinted_compute():
  for point in _points('figure5', label='R50+ViT-L/16, 7 epochs'):
    assert point.x == 859
    assert point.x_note.endswith(
      'probably means 834: half of the number for 14 epochs'
    )


def test_figure_13_has_approximate_accuracies_and_no_unknown_compute():
  points = {point.series: (point.x, point.y.value) for point in F['figure13']}
  assert points == {
    'ViT-B/32': (55, 0.5625),
    'ViT-B/16': (224, 0.6375),
    'Axial-ViT-B/32': (108, 0.5875),
    'Axial-ViT-B/16': (426, 0.65),
    'AxialResNet50': (None, 0.5625),
    'BiT-R50x1': (50, 0.5),
  }
  for point in F['figure13']:
    assert point.y.note.startswith('approximate: ')
    ticks = [float(tick) for tick in re.findall(r'0\.\d+', point.y.note)]
    assert point.y.value == pytest.approx(sum(ticks) / len(ticks))


# Panels. ----------------------------------------------------------------------


def test_plots_have_the_papers_number_of_panels():
  assert {name: len(panels) for name, panels in numbers.PANELS.items()} == {
    **{'figure2': 4, 'figure3': 1, 'figure4': 1, 'figure5': 2, 'figure7': 1},
    **{'figure8': 2, 'figure9': 1, 'figure10': 3, 'figure11': 2},
    **{'figure12': 2, 'figure13': 2},
  }


def test_points_are_on_panels_and_in_their_legends():
  for name, points in F.items():
    for point in points:
      panels = {panel.title: panel for panel in numbers.PANELS[name]}
      assert point.series in panels[point.panel].series


def test_points_are_between_the_ticks_or_next_to_them():
  for name, points in F.items():
    for point in points:
      (panel,) = (
        panel for panel in numbers.PANELS[name] if panel.title == point.panel
      )
      low, high = panel.y_ticks
      margin = (high - low) / 5
      assert low - margin <= point.y.value <= high + margin


@pytest.mark.parametrize(
  'figure, x_ticks, y_ticks, log_x',
  [
    ('figure2', (), [(65, 80), (70, 90), (80, 90), (50, 70)], False),
    ('figure3', ('ImageNet', 'ImageNet-21k', 'JFT-300M'), [(70, 90)], False),
    ('figure4', (1e7, 3e7, 1e8, 3e8), [(30, 70)], True),
    ('figure5', (100, 1000), [(90, 95), (75, 90)], True),
    ('figure7', (0, 23), [(0, 120)], False),
    ('figure8', (1, 10), [(0.2, 0.6), (0.4, 0.8)], True),
    ('figure9', (0, 7), [(25, 60)], False),
    ('figure11', (0, 23), [(0, 120), (0, 120)], False),
    ('figure12', (64, 128, 224, 384, 512), [(), ()], False),
  ],
)
def test_axes(figure, x_ticks, y_ticks, log_x):
  panels = numbers.PANELS[figure]
  assert [panel.y_ticks for panel in panels] == y_ticks
  assert {panel.x_ticks for panel in panels} == {x_ticks}
  assert {panel.log_x for panel in panels} == {log_x}
  assert {panel.log_y for panel in panels} == {figure == 'figure12'}


def test_axes_of_the_axial_figure():
  left, right = numbers.PANELS['figure13']
  assert left.y_ticks == right.y_ticks == (0.5, 0.65)
  assert (left.x_ticks, right.x_ticks) == ((100, 1000), ())


def test_models_in_legends_can_be_built():
  for name in (4, 7, 10, 11, 12, 13):
    for panel in numbers.PANELS[f'figure{name}']:
      assert {*panel.series} <= {*models.names()}


def test_legends_of_the_ablations():
  assert [panel.series for panel in numbers.PANELS['figure8']] == 2 * [
    ('All', 'Depth', 'Patch size', 'Width MLP', 'Width')
  ]
  assert numbers.PANELS['figure9'][0].series == (
    *('CLS, lr=8e-4', 'GAP, lr=8e-4', 'GAP, lr=3e-4'),
  )
  assert [panel.title for panel in numbers.PANELS['figure10']] == [
    '7 epochs, LR=2e-4, WD=0.01',
    '7 epochs, LR=4e-4, WD=0.1',
    '14 epochs, LR=4e-4, WD=0.1',
  ]
  assert [panel.title for panel in numbers.PANELS['figure11']] == [
    *('ViT-L/16', 'R50+ViT-L/16'),
  ]
