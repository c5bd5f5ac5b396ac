"""Guards: the figures' points are complete, have a source, and fit the axes."""

from vit_jax import models
from vit_jax.paper import numbers

F = numbers.FIGURES


def _points(figure, **attributes):
  return [
    point
    for point in F[figure]
    if all(getattr(point, key) == value for key, value in attributes.items())
  ]


def test_each_point_names_its_source():
  for points in F.values():
    for point in points:
      assert point.y.note
      is_number = isinstance(point.x, float)
      assert bool(point.x_note) == is_number


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


# Panels. ----------------------------------------------------------------------


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


def test_models_in_legends_can_be_built():
  for name in (4, 7, 10, 11, 12, 13):
    for panel in numbers.PANELS[f'figure{name}']:
      assert {*panel.series} <= {*models.names()}
