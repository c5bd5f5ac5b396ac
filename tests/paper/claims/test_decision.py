"""Guards: claims are decided by the spread of numbers, never by too few."""

import numpy as np
import pytest
from scipy import stats

from vit_jax.paper.claims import decision
from vit_jax.paper.claims.decision import Verdict


def _answer(*tests):
  """Returns 'yes', 'no' or 'undecided' of a claim that is alone."""
  found = decision.verdict([decision.outcome(test) for test in tests])
  if found.p >= decision.LEVEL:
    return 'undecided'
  return 'yes' if found.holds else 'no'


def _lead(one, other):
  return [one, [-value for value in other]]


def test_a_difference_is_decided_by_welchs_t_test():
  one, other = [2.0, 2.3, 2.1], [1.0, 1.8, 1.1, 1.2]
  found = decision.outcome(_lead(one, other))
  expected = stats.ttest_ind(one, other, equal_var=False, alternative='greater')
  assert found.above == pytest.approx(expected.pvalue)
  assert found.below == pytest.approx(1 - expected.pvalue)
  both = stats.ttest_ind(one, other, equal_var=False)
  assert found.freedom == pytest.approx(both.df)
  assert found.interval() == pytest.approx(both.confidence_interval(0.95))
  # The claim is tested in both directions.
  assert decision.verdict([found]) == Verdict(True, pytest.approx(both.pvalue))


def test_a_single_value_or_two_equal_ones_decide_nothing():
  # Two runs can agree by chance, but a t-test would take that for certain.
  for few in ([2.0], [2.0, 2.0]):
    assert _answer(_lead(few, [1.0, 1.1, 1.2])) == 'undecided'
    assert decision.outcome([few]).interval() is None
  assert _answer(_lead([2.0] * 3, [1.0] * 3)) == 'yes'
  assert _answer(_lead([1.0] * 3, [2.0] * 3)) == 'no'
  assert _answer(_lead([1.0] * 3, [1.0] * 3)) == 'undecided'
  assert _answer(_lead([2.0] * 3, [1.0, 1.1])) == 'yes'


def test_yes_needs_all_tests_and_a_denial_is_corrected_for_them():
  ahead = _lead([5.0, 6.0, 7.5], [1.0, 2.0, 3.0])
  behind = _lead([1.0, 2.0, 3.0], [5.0, 6.0, 7.5])
  even = _lead([1.0, 2.0, 3.0], [1.1, 2.1, 3.1])
  assert _answer(ahead, ahead) == 'yes'
  assert _answer(ahead, even) == 'undecided'
  assert _answer(ahead, behind) == 'no'
  assert _answer(*[ahead] * 6, behind) == 'undecided'


def test_holm_agrees_with_its_definition():
  found = decision.holm({'a': 0.01, 'b': 0.04, 'c': 0.03, 'd': 0.005})
  expected = {'d': 0.02, 'a': 0.03, 'c': 0.06, 'b': 0.06}
  assert found == pytest.approx(expected)
  assert decision.holm({'a': 0.6, 'b': 0.9}) == {'a': 1.0, 'b': 1.0}


def test_a_floor_keeps_equal_values_from_being_certain():
  # Three accuracies of 99.4% and three of 99.3% are one image of 1,000 apart.
  groups = [[99.4] * 3, [-99.3] * 3]
  assert decision.outcome(groups).above == 0
  found = decision.outcome(groups, [0.05, 0.05])
  assert found.error == pytest.approx(0.05 * np.sqrt(2 / 3))
  assert 0.01 < found.above < 0.1
  # It does not matter where values differ by more.
  wide = _lead([5.0, 6.0, 7.0], [1.0, 2.0, 3.0])
  assert decision.outcome(wide, [0.05, 0.05]) == decision.outcome(wide)


def test_answers_of_a_family_are_rarely_wrong():
  # Of 5 claims without any difference, one in 20 families has a wrong answer.
  rng = np.random.default_rng(1)
  wrong = 0
  for _ in range(1000):
    p = {
      str(i): decision.verdict(
        [decision.outcome([list(rng.normal(size=4)), list(rng.normal(size=4))])]
      ).p
      for i in range(5)
    }
    wrong += min(decision.holm(p).values()) < decision.LEVEL
  assert wrong / 1000 < 0.07
