"""Points of the figures: how many, from where, and inside the axes."""

import pytest

from vit_jax.paper import numbers

F = numbers.FIGURES


def _points(figure, **attributes):
  return [
    point
    for point in F[figure]
    if all(getattr(point, key) == value for key, value in attributes.items())
  ]


def test_figures_have_as_many_points_as_are_known():
  assert {name: len(points) for name, points in F.items()} == {
    **{f'figure{i}': 0 for i in (1, 4, 6, 7, 8, 9, 10, 11, 12, 14)},
    **{'figure2': 10, 'figure3': 14, 'figure5': 36, 'figure13': 6},
  }


def test_each_point_says_where_it_is_from():
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


def test_figure_2s_groups_of_s4l_have_its_mean():
  mean, *groups = (
    point.y.value for point in _points('figure2', series='S4L, R50x1')
  )
  total = sum(
    size * group for size, group in zip((7, 4, 8), groups, strict=True)
  )
  assert total / 19 == pytest.approx(mean, abs=0.05)


def test_figure_3_is_the_imagenet_rows_of_table_5():
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
    assert point.x_note.startswith('Table 6; probably a misprint of 834')


def test_figure_13_is_approximate_and_without_what_is_unknown():
  points = {point.series: (point.x, point.y.value) for point in F['figure13']}
  assert points == {
    'ViT-B/32': (55, 0.5625),
    'ViT-B/16': (224, 0.6375),
    'Axial-ViT-B/32': (108, 0.5875),
    'Axial-ViT-B/16': (426, 0.65),
    'AxialResNet50': (None, 0.5625),
    'BiT-R50x1': (50, 0.5),
  }
  assert all(p.y.note.startswith('approximate: ') for p in F['figure13'])


# Panels. ----------------------------------------------------------------------


def test_all_plots_have_their_panels():
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


def test_axes_of_the_data_scaling_figure():
  (panel,) = numbers.PANELS['figure4']
  assert panel.log_x
  assert not panel.log_y
  assert panel.x_ticks == (1e7, 3e7, 1e8, 3e8)
  assert panel.y_ticks == (30, 70)
  assert panel.series == (
    *('ViT-L/16', 'ViT-L/32', 'ViT-B/32', 'ViT-b/32'),
    *('BiT-R50x1', 'BiT-R152x2'),
  )
