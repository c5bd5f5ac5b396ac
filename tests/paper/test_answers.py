"""Guards: answers follow from exact tests, and are rarely wrong."""

import itertools
import statistics

import numpy as np
import pytest
from scipy import stats

from vit_jax.paper import answers
from vit_jax.paper.claims import Claim, Measure
from vit_jax.paper.runs import Pretraining

ONE, OTHER, THIRD = (
  Pretraining(model) for model in ('ViT-B/16', 'ViT-B/32', 'ViT-L/16')
)


def _measure(name='points in percent', digits=1):
  return Measure(name, lambda *_: None, digits=digits)


def _lead(one=ONE, other=OTHER, **options):
  sum_ = _measure()(one) - _measure()(other)
  return Claim('lead', 'It leads.', {'lead': sum_}, **options)


def _lookup(values):
  """Returns values of a mean by its model, None for others."""
  return lambda mean: values.get(mean.start.model)


def _answered(claims, values, **options):
  lookup = _lookup(values)
  page = {str(i): (claim, lookup) for i, claim in enumerate(claims)}
  return [*answers.of_page(page, **options).values()]


# Exact tests. -----------------------------------------------------------------


def _random(seed, *sizes):
  """Returns groups of small whole numbers, which often are equal."""
  rng = np.random.default_rng(seed)
  return [[float(x) for x in rng.integers(0, 5, size)] for size in sizes]


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('sizes', [(3, 3), (2, 5), (4, 3)])
def test_a_difference_is_compared_with_all_ways_to_deal_the_runs(seed, sizes):
  one, other = _random(seed, *sizes)
  found = answers.outcome([one, [-x for x in other]], difference=True)
  observed = statistics.fmean(one) - statistics.fmean(other)
  every, above, below, count = [*one, *other], 0, 0, 0
  for chosen in itertools.combinations(range(len(every)), len(one)):
    rest = [x for i, x in enumerate(every) if i not in chosen]
    dealt = statistics.fmean(every[i] for i in chosen) - statistics.fmean(rest)
    above += dealt >= observed - 1e-9
    below += dealt <= observed + 1e-9
    count += 1
  assert found.estimate == pytest.approx(observed)
  assert found.above == pytest.approx(above / count)
  assert found.below == pytest.approx(below / count)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('sizes', [(4,), (3, 5), (4, 4, 6)])
def test_another_sum_is_compared_with_all_ways_to_flip_signs(seed, sizes):
  groups = [[x - 1 for x in group] for group in _random(seed, *sizes)]
  found = answers.outcome(groups)
  # Seed by seed, as far as all groups have the seed.
  sums = [*map(sum, zip(*groups, strict=False))]
  flipped = [
    sum(sign * x for sign, x in zip(signs, sums, strict=True))
    for signs in itertools.product((1, -1), repeat=len(sums))
  ]
  above = statistics.fmean(x >= sum(sums) - 1e-9 for x in flipped)
  below = statistics.fmean(x <= sum(sums) + 1e-9 for x in flipped)
  assert (found.above, found.below) == pytest.approx((above, below))
  assert found.estimate == pytest.approx(sum(map(statistics.fmean, groups)))


def test_many_runs_are_compared_with_random_permutations():
  rng = np.random.default_rng(3)
  one, other = rng.normal(0.6, 1, 12), rng.normal(0, 1, 12)
  found = answers.outcome([[*one], [*-other]], difference=True)
  expected = stats.ttest_ind(one, other, alternative='greater').pvalue
  assert found.above == pytest.approx(expected, rel=0.15)
  flips = answers.outcome([[*(one + 0.3 * rng.normal(size=12))] * 2])
  assert flips.above + flips.below == pytest.approx(1, abs=0.02)
  assert answers.outcome([[*one], [*-other]], difference=True) == found


def test_a_single_value_decides_nothing():
  found = answers.outcome([[2.0], [-1.0, -1.1]], difference=True)
  assert (found.above, found.below, found.interval) == (1, 1, None)
  same = answers.outcome([[1.0, 1.0], [-1.0, -1.0]], difference=True)
  assert (same.above, same.below, same.interval) == (1, 1, None)


@pytest.mark.parametrize(
  ('weights', 'seeds'),
  [((1, -1), 5), ((0.5, 0.5, -1), 6), ((1, -1, -1, 1), 7)],
)
def test_runs_that_learn_or_not_are_rarely_told_apart_wrongly(weights, seeds):
  """All models learn as often: any answer but undecided is wrong."""
  rng = np.random.default_rng(0)
  difference, wrong, trials = len(weights) == 2, 0, 400
  for _ in range(trials):
    values = 0.05 + 0.6 * rng.integers(0, 2, (len(weights), seeds))
    values += rng.normal(0, 0.01, values.shape)
    groups = [[*(w * x)] for w, x in zip(weights, values, strict=True)]
    outcome = answers.outcome(groups, difference=difference)
    wrong += answers.verdict([outcome])[1] < answers.LEVEL
  assert wrong <= answers.LEVEL * trials


@pytest.mark.parametrize(
  ('count', 'difference', 'answer'),
  [
    *((3, True, 'undecided'), (4, True, 'yes'), (5, True, 'yes')),
    *((5, False, 'undecided'), (6, False, 'yes'), (8, False, 'yes')),
  ],
)
def test_a_clear_lead_alone_needs_some_seeds(count, difference, answer):
  sum_ = _measure()(ONE) - _measure()(OTHER)
  if not difference:
    sum_ = sum_ - 0.5 * _measure()(THIRD)
  claim = Claim('lead', 'It leads.', {'lead': sum_})
  values = {'ViT-B/16': [9.0] * count, 'ViT-B/32': [*np.arange(count) / 100]}
  values['ViT-L/16'] = values['ViT-B/32']
  [found] = _answered([claim], values)
  assert found.answer == answer


# Several tests, several claims. -----------------------------------------------


def _outcome(above, below):
  return answers.Outcome(0.0, above, below)


def test_yes_needs_all_tests_and_a_denial_is_corrected_for_them():
  ahead, behind, even = (
    *(_outcome(0.01, 0.99), _outcome(0.99, 0.01), _outcome(0.4, 0.6)),
  )
  assert answers.verdict([ahead, ahead]) == (True, pytest.approx(0.02))
  assert answers.verdict([ahead, even])[1] > answers.LEVEL
  assert answers.verdict([ahead, behind]) == (False, pytest.approx(0.04))
  assert answers.verdict([*[ahead] * 6, behind])[1] > answers.LEVEL


def test_holm_agrees_with_its_definition():
  found = answers.holm({'a': 0.01, 'b': 0.04, 'c': 0.03, 'd': 0.005})
  expected = {'d': 0.02, 'a': 0.03, 'c': 0.06, 'b': 0.06}
  assert found == pytest.approx(expected)
  assert answers.holm({'a': 0.6, 'b': 0.9}) == {'a': 1.0, 'b': 1.0}


FAR = {'ViT-B/16': (5.0, 6.0, 7.0, 8.0, 9.0), 'ViT-B/32': (0.0, 1.0, 2.0, 3, 4)}
NEAR = {'ViT-B/16': (1.0, 2.0, 3.0, 4, 5), 'ViT-B/32': (1.5, 2.5, 3.5, 4.5, 5)}


@pytest.mark.parametrize(
  ('values', 'answer'),
  [
    (FAR, 'yes'),
    ({'ViT-B/16': FAR['ViT-B/32'], 'ViT-B/32': FAR['ViT-B/16']}, 'no'),
    (NEAR, 'undecided'),
    ({'ViT-B/16': (5.0, 6.0)}, 'missing'),
    ({'ViT-B/16': (5.0,), 'ViT-B/32': (1.0,)}, 'seen once'),
    ({'ViT-B/16': (1.0,), 'ViT-B/32': (5.0,)}, 'not seen'),
  ],
)
def test_answers(values, answer):
  [found] = _answered([_lead(about='We chose it.')], values)
  assert (found.statement, found.answer) == ('It leads.', answer)
  if answer == 'missing':
    assert OTHER.name in found.evidence
    assert ONE.name not in found.evidence
    return
  assert found.evidence.endswith('We chose it.')
  assert ('p = ' in found.evidence) == (len(values['ViT-B/16']) > 1)


def test_the_evidence_has_means_spread_interval_and_p():
  [found] = _answered([_lead()], FAR)
  welch = stats.ttest_ind(*FAR.values(), equal_var=False)
  low, high = welch.confidence_interval(0.95)
  for part in (
    'ViT-B/16, JFT-300M 7.0 ± 1.6 (5 pre-trainings)',
    'ViT-B/32, JFT-300M 2.0 ± 1.6 (5 pre-trainings)',
    f'Lead: +5.0 (95% interval {low:+.1f} to {high:+.1f})',
    'p = 0.0079.',
  ):
    assert part in found.evidence


def test_all_claims_of_a_page_are_corrected_together():
  gone = _lead(ONE, THIRD)
  # Alone, the p-value is 0.0079.
  assert _answered([_lead()], FAR)[0].answer == 'yes'
  found = _answered([_lead(), *[gone] * 5], FAR)
  assert [claim.answer for claim in found] == ['yes', *['missing'] * 5]
  # Claims whose runs are missing were asked, too.
  found = _answered([_lead(), *[gone] * 6], FAR)
  assert [claim.answer for claim in found] == ['undecided', *['missing'] * 6]
  assert '7 claims on this page' in found[0].evidence


def test_what_a_miniature_cannot_show_is_not_asked_there():
  other = _lead(not_in_miniature='All are alike.')
  claims = [_lead(), *[other] * 6]
  found = _answered(claims, FAR, miniature=True)
  assert [claim.answer for claim in found] == [
    *('yes', *['not in miniature'] * 6)
  ]
  assert found[1].evidence == 'All are alike.'
  # Elsewhere it is, and counts in the family.
  assert {claim.answer for claim in _answered(claims, FAR)} == {'undecided'}


def test_numbers_of_one_pretraining_are_not_independent():
  # Both measures vary together, so their difference has no spread.
  first, second = _measure('first'), _measure('second')
  sum_ = first(ONE) - second(ONE)
  claim = Claim('excess', 'It is more.', {'excess': sum_})
  values = {
    first: [5.0, 7, 9, 11, 13, 15, 20, 30],
    second: [4.0, 6, 8, 10, 12, 14, 19, 29],
  }
  found = answers.of_page({'a': (claim, lambda mean: values[mean.measure])})[
    'a'
  ]
  assert found.answer == 'yes'
  assert 'Excess: +1.0.' in found.evidence.replace(
    ' (95% interval +1.0 to +1.0)', ''
  )
  # Of different measures, it isn't a difference of alike means.
  assert 'p = 0.0078' in found.evidence
