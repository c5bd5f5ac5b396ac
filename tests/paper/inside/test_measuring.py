"""Guards: numbers from weights are right for simple weights."""

import numpy as np
import pytest

from vit_jax.paper.inside import measuring


def _cosines(table):
  """Returns the cosines of positions, [rows, columns, rows, columns]."""
  rows, columns, width = table.shape
  flat = table.reshape(-1, width)
  flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
  return (flat @ flat.T).reshape(rows, columns, rows, columns)


def _random(seed=0):
  return _cosines(np.random.default_rng(seed).normal(size=(6, 6, 64)))


def _smooth():
  """Returns positions whose similarity falls with the distance."""
  places = np.stack(np.indices((6, 6)), -1).reshape(-1, 2)
  distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
  return np.exp(-(distance**2) / 8).reshape(6, 6, 6, 6)


@pytest.mark.parametrize(
  ('blocks', 'expected'),
  [([10, 20, 30, 40], 0.85), ([40, 30, 20, 10], -0.85), ([20, 20, 20, 20], 0)],
)
def test_distance_by_depth_has_the_sign_of_the_growth(blocks, expected):
  heads = np.array([[block + h for h in (-1, 0, 1)] for block in blocks])
  found = measuring.distance_by_depth(heads)
  assert found == pytest.approx(expected, abs=0.06)


def test_early_blocks_are_the_first_quarter():
  heads = np.arange(8.0)[:, None] * np.ones((8, 3))
  assert measuring.early_distance(heads) == 0.5
  assert measuring.early_distance(heads[:2]) == 0


def test_near_positions_are_similar():
  assert measuring.position_locality(_smooth()) == pytest.approx(1, abs=0.01)
  assert abs(measuring.position_locality(_random())) < 0.1


def test_lines_are_rows_and_columns_beyond_their_distance():
  rows, columns = np.indices((6, 6)).reshape(2, -1)
  line = (rows[:, None] == rows) | (columns[:, None] == columns)
  cosines = (0.3 * line + 0.7 * np.eye(36)).reshape(6, 6, 6, 6)
  assert measuring.position_lines(cosines) == pytest.approx(0.3)
  # A mere fall with the distance is not a line, whatever its form.
  places = np.stack([rows, columns], -1)
  distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
  for fall in (np.exp(-(distance**2) / 2), np.exp(-distance), 1 - distance / 9):
    found = measuring.position_lines(fall.reshape(6, 6, 6, 6))
    assert found == pytest.approx(0, abs=1e-9)
  with pytest.raises(ValueError, match='a grid of 3x3 patches has no other'):
    measuring.position_lines(np.ones((3, 3, 3, 3)))


def test_slow_waves_have_more_than_the_share_of_shuffled_positions():
  assert measuring.position_waves(_smooth()) > 0.7
  shuffled = [measuring.position_waves(_random(seed)) for seed in range(20)]
  assert np.mean(shuffled) == pytest.approx(0, abs=0.02)
  # The fastest waves: a checkerboard.
  sign = (-1.0) ** np.indices((6, 6)).sum(0)
  assert measuring.position_waves(_cosines(sign[..., None])) < 0


@pytest.mark.parametrize('side', [3, 6, 7, 14])
def test_slow_waves_alone_are_all_on_any_grid(side):
  half = np.cos(np.pi * (np.arange(side) + 0.5) / side)
  table = np.outer(half, np.ones(side)).ravel()
  cosines = np.outer(table, table).reshape((side,) * 4)
  assert measuring.position_waves(cosines) == pytest.approx(1)


@pytest.mark.parametrize('run', ['nan', 'inf'])
def test_a_number_that_is_not_finite_is_a_failure(run):
  # Of a work directory whose name is a number.
  assert measuring.number(float, '3') == 3
  with pytest.raises(ValueError, match=run):
    measuring.number(float, run)


def test_filters_of_few_components_stand_out():
  rng = np.random.default_rng(1)
  random = rng.normal(size=(4, 4, 3, 64))
  assert measuring.filter_share(random) == pytest.approx(0, abs=0.04)
  few = rng.normal(size=(4, 4, 3, 4)) @ rng.normal(size=(4, 64))
  assert measuring.filter_share(few + 0.1 * random) > 0.5
