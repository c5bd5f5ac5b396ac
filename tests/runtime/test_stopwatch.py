"""Guards: turns, medians, statistics and ratios of measured times."""

import time

import pytest

from vit_jax.runtime import stopwatch


@pytest.fixture
def work(monkeypatch):
  """Returns a function that takes given seconds on a fake clock."""
  now, taken = 0.0, []
  monkeypatch.setattr(time, 'perf_counter', lambda: now)

  def work():
    nonlocal now
    taken.append(now)
    now += work.durations.pop(0)

  work.taken = taken
  return work


@pytest.mark.parametrize(
  'durations, warm_up, expected, count',
  [
    ([9, 9, 1, 2, 6, 3, 1], 2, 2, 7),
    # Slow: one call warms up, and three count.
    ([200, 21, 22, 23, 24], 10, 22, 4),
  ],
)
def test_the_median_is_of_the_calls_after_the_warm_up(
  work, durations, warm_up, expected, count
):
  work.durations = durations
  limits = dict(warm_up=warm_up, calls=5, max_seconds=20)
  assert stopwatch.median_seconds(work, **limits) == expected
  assert len(work.taken) == count


def test_turns_alternate():
  order = []

  def turn(name):
    order.append(name)
    return len(order)

  samples = stopwatch.take_turns(
    {name: lambda name=name: turn(name) for name in 'abc'}, 3
  )
  assert order == list('abcabcabc')
  assert samples == {'a': [1, 4, 7], 'b': [2, 5, 8], 'c': [3, 6, 9]}


def test_statistics():
  # The quartiles are 2 and 4.
  assert stopwatch.statistics([5.0, 1.0, 3.0, 2.0, 4.0]) == {
    'median': 3.0,
    'min': 1.0,
    'max': 5.0,
    'spread': pytest.approx(2 / 3),
    'count': 5,
    'values': [5.0, 1.0, 3.0, 2.0, 4.0],
  }


def test_paired_ratios_are_taken_within_rounds():
  # In the rounds b is 10, 1 and 2 times as slow. The medians are 10 and 20.
  found = stopwatch.ratios({'a': [1.0, 100.0, 10.0], 'b': [10.0, 100.0, 20.0]})
  assert found == {
    'a': {'ratio': 1, 'paired_ratio': 1, 'paired_ratio_quartiles': [1, 1]},
    'b': {'ratio': 2, 'paired_ratio': 2, 'paired_ratio_quartiles': [1.5, 6]},
  }
