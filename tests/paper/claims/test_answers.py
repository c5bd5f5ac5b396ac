"""Guards: answers and their evidence follow from the runs' numbers."""

import pytest

from vit_jax.paper.claims import answers
from vit_jax.paper.claims.claim import Claim, Contrast, total
from vit_jax.paper.runs import Pretraining, Results

ONE, OTHER = Pretraining('ViT-B/16'), Pretraining('ViT-B/32')


class Table:
  """A measure that looks numbers up, by model and seed."""

  name, digits, curves, floor = 'points in percent', 1, False, 0.0

  def __init__(self, values, name='points in percent'):
    self.values, self.name = values, name

  def nodes(self, start):
    return (start,)

  def value(self, results, start):
    found = self.values.get(start.model, ())
    return found[start.seed] if start.seed < len(found) else None


def _answered(claims, count=3):
  starts = {start for c in claims for start in c.starts()}
  results = Results([], {}, counts=dict.fromkeys(starts, count))
  return answers.of_item(claims, results)


def _lead(table, one=ONE, other=OTHER, **options):
  test = Contrast('lead', total(table, one) - total(table, other))
  return Claim(options.pop('key', 'lead'), 'It leads.', (test,), **options)


def test_the_evidence_has_means_spread_interval_and_p():
  table = Table({'ViT-B/16': (5.0, 6.0, 7.0), 'ViT-B/32': (1.0, 2.0, 3.0)})
  [found] = _answered([_lead(table, about='We chose it.')])
  assert (found.statement, found.answer) == ('It leads.', 'yes')
  assert found.evidence == (
    'Points in percent: ViT-B/16, JFT-300M 6.0 ± 1.0 (3 pre-trainings);'
    ' ViT-B/32, JFT-300M 2.0 ± 1.0 (3 pre-trainings). Lead: +4.0 (95% interval'
    ' +1.7 to +6.3). p = 0.008. We chose it.'
  )


@pytest.mark.parametrize(
  ('one', 'other', 'answer'),
  [
    ((5.0, 6.0, 7.0), (1.0, 2.0, 3.0), 'yes'),
    ((1.0, 2.0, 3.0), (5.0, 6.0, 7.0), 'no'),
    ((1.0, 2.0, 3.0), (1.5, 2.5, 3.5), 'undecided'),
    ((1.0, 2.0), (5.0, 6.0, 7.0), 'missing'),
  ],
)
def test_answers(one, other, answer):
  [found] = _answered([_lead(Table({'ViT-B/16': one, 'ViT-B/32': other}))])
  assert found.answer == answer


def test_single_runs_are_seen_once_and_decide_nothing():
  high, low = (
    Table({'ViT-B/16': [5.0], 'ViT-B/32': [1.0]}),
    Table({'ViT-B/16': [1.0], 'ViT-B/32': [5.0]}),
  )
  [seen] = _answered([_lead(high)], count=1)
  [unseen] = _answered([_lead(low)], count=1)
  assert (seen.answer, unseen.answer) == ('seen once', 'not seen')
  assert 'Too few different values to know their spread.' in seen.evidence
  assert 'p =' not in seen.evidence


def test_all_claims_of_an_item_are_corrected_together():
  # Alone, the p-value is 0.02.
  table = Table({'ViT-B/16': (4.05, 5.05, 6.05), 'ViT-B/32': (1.0, 2.0, 3.0)})
  alone = _answered([_lead(table)])
  assert alone[0].answer == 'yes'
  nothing = Table({})
  both = _answered(
    [_lead(table), *(_lead(nothing, key=f'missing{i}') for i in range(3))]
  )
  # Claims whose runs are missing were asked, too.
  assert [c.answer for c in both] == ['undecided', *['missing'] * 3]
  assert 'corrected for the 4 claims of this item' in both[0].evidence
  assert 'ViT-B/16, JFT-300M; ViT-B/32, JFT-300M' in both[1].evidence


def test_numbers_of_one_pretraining_are_not_independent():
  # Both measures vary together, so their difference has no spread.
  first = Table({'ViT-B/16': (5.0, 7.0, 9.0)}, 'first')
  second = Table({'ViT-B/16': (4.0, 6.0, 8.0)}, 'second')
  test = Contrast('excess', total(first, ONE) - total(second, ONE))
  [found] = _answered([Claim('excess', 'It is more.', (test,))])
  assert found.answer == 'yes'
  assert 'Excess: +1.0 (95% interval +1.0 to +1.0). p < 0.0001.' in (
    found.evidence
  )


def test_sums_add_their_weights():
  table = Table({})
  one, other = total(table, ONE), total(table, OTHER)
  found = 2.0 * one - 0.5 * (one + other)
  assert {m.start: w for w, m in found.terms} == {ONE: 1.5, OTHER: -0.5}
  # A mean that cancels out is not needed.
  nothing = Claim('a', 'A', (Contrast('t', one + other - one),))
  assert nothing.starts() == [OTHER]
  assert (one - one).by_start() == {}
