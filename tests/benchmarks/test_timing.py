"""Guards: turns, statistics and ratios of the benchmarks, with a fake clock."""

import itertools

import pytest

from benchmarks.measure import peaks, timing


def test_turns_alternate():
  order = []

  def turn(name):
    order.append(name)
    return len(order)

  samples = timing.interleave(
    {'a': lambda: turn('a'), 'b': lambda: turn('b'), 'c': lambda: turn('c')}, 3
  )
  assert order == list('abcabcabc')
  assert samples == {'a': [1, 4, 7], 'b': [2, 5, 8], 'c': [3, 6, 9]}


def test_waits_for_what_is_computed(monkeypatch):
  waited = []
  monkeypatch.setattr(timing.jax, 'block_until_ready', waited.append)
  timing.seconds_of(lambda: 'result', clock=itertools.count().__next__)
  assert waited == ['result']


def test_statistics():
  # The quartiles are 2 and 4.
  assert timing.statistics([5.0, 1.0, 3.0, 2.0, 4.0]) == {
    'median': 3.0,
    'min': 1.0,
    'max': 5.0,
    'spread': pytest.approx(2 / 3),
    'count': 5,
    'values': [5.0, 1.0, 3.0, 2.0, 4.0],
  }


def test_compare():
  # The machine was slower in the third round, for both settings.
  found = timing.compare({'a': [1.0, 2.0, 10.0], 'b': [3.0, 4.0, 20.0]})
  assert found['a']['ratio'] == found['a']['paired_ratio'] == 1
  assert found['b']['median'] == 4
  assert found['b']['ratio'] == 2  # 4 / 2.
  assert found['b']['paired_ratio'] == 2  # The median of 3, 2 and 2.
  assert found['b']['paired_ratio_quartiles'] == [2, 2.5]


def test_paired_ratio_is_taken_within_rounds():
  # In the rounds b is 10, 1 and 2 times as slow. The medians are 10 and 20.
  found = timing.compare({'a': [1.0, 100.0, 10.0], 'b': [10.0, 100.0, 20.0]})
  assert found['b']['paired_ratio'] == 2
  assert timing.compare({'a': [1.0, 2.0, 9.0], 'b': [9.0, 2.0, 1.0]})['b'][
    'paired_ratio'
  ] == pytest.approx(1)


def test_mfu():
  # ViT-B/16 needs 17.5 GMACs, so training at 100 images/s is 10.5 TFLOP/s.
  assert peaks.mfu(100, 17_500_000_000, 1, 105.0) == pytest.approx(0.1)
  assert peaks.mfu(100, 17_500_000_000, 2, 105.0) == pytest.approx(0.05)
  assert peaks.mfu(100, 17_500_000_000, 1, None) is None
  assert peaks.of_device(None) is None  # The peak of a CPU is not known.
  assert peaks.of_device(3.0) == 3.0
