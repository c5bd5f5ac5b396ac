"""Guards: claims are decided by the spread of numbers, never by too few."""

from tests.paper.drawn import number
from vit_jax.paper import claims
from vit_jax.paper.claims import table_claims


def test_claims_are_decided_by_a_t_test():
  assert claims.compare(number(2.0, 2.1), number(1.0, 1.1)) == 'yes'
  assert claims.compare(number(1.0, 1.1), number(2.0, 2.1)) == 'no'
  assert claims.compare(number(1.0, 2.0), number(1.2, 1.4)) == claims.UNDECIDED
  assert claims.compare(None, number(1.0)) == 'missing'
  # A single run has no spread. Pairs must differ by 0.304: a standard error of
  # 0.0707 times 4.30, which is t(0.975) of 2 degrees of freedom.
  assert claims.compare(number(2.0), number(1.0)) == claims.UNDECIDED
  assert claims.compare(number(1.0, 1.1), number(1.3, 1.2)) == claims.UNDECIDED
  one, other = number(1.0, 1.1), number(1.0 + 0.43, 1.1 + 0.43)
  assert claims.compare(other, one) == 'yes'
  other = number(1.0 + 0.29, 1.1 + 0.29)
  assert claims.compare(other, one) == claims.UNDECIDED


def test_values_without_spread_decide_only_with_three_runs():
  # Two runs can agree by chance, but a t-test would take that for certain.
  two, three = number(2.0, 2.0), number(2.0, 2.0, 2.0)
  assert claims.compare(two, number(1.0, 1.0)) == claims.UNDECIDED
  assert claims.compare(two, number(1.0, 1.1, 1.2)) == claims.UNDECIDED
  assert claims.compare(number(1.0, 1.0, 1.0), two) == claims.UNDECIDED
  assert claims.compare(three, number(1.0, 1.0, 1.0)) == 'yes'
  assert claims.compare(number(1.0, 1.0, 1.0), three) == 'no'
  assert claims.compare(three, three) == claims.UNDECIDED
  assert claims.compare(three, number(1.0, 1.1)) == 'yes'


def test_a_denial_is_corrected_for_the_number_of_parts():
  low, high = number(1.0, 2.0, 3.0), number(5.0, 6.0, 7.5)
  assert claims.compare(low, high) == claims.compare(low, high, parts=2) == 'no'
  assert claims.compare(low, high, parts=7) == claims.UNDECIDED
  assert claims.compare(high, low, parts=7) == 'yes'


def test_means_are_shown_with_the_number_of_runs():
  assert claims.text(number(1.0), 2) == '1.00 (1 run)'
  assert claims.text(number(1.0, 2.0), 1) == '1.5 ± 0.7 (2 runs)'
  assert claims.text(number(1.0, 2.0, 3.0), 0, 'pre-training') == (
    '2 ± 1 (3 pre-trainings)'
  )
  assert claims.text(None, 2) == 'missing'


def test_adam_must_be_ahead_for_both_models():
  low, high = number(50.0, 51.0, 52.0), number(60.0, 61.0, 62.0)
  single = number(99.0)

  def answered(small, large):
    [claim] = table_claims.adam_is_better(
      {
        ('BiT-R50x1', 'Adam'): small,
        ('BiT-R50x1', 'SGD'): low,
        ('BiT-R152x2', 'Adam'): large,
        ('BiT-R152x2', 'SGD'): low,
      }
    )
    return claim

  assert answered(high, high).answer == 'yes'
  assert answered(low, high).answer == claims.UNDECIDED
  # One pre-training decides nothing.
  assert answered(high, single).answer == claims.UNDECIDED
  assert 'BiT-R152x2: Adam 99.00 (1 pre-training), SGD 51.00 ± 1.00 (3 pre' in (
    answered(high, single).evidence
  )
  assert answered(None, high).answer == 'missing'
