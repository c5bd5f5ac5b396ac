"""Guards: the number of pre-trainings follows from a pilot's spreads."""

import json

import numpy as np
import pytest

from tests.paper.claims.test_answers import ONE, OTHER, Table, _lead
from vit_jax.paper.claims import answers, counts, decision
from vit_jax.paper.claims.claim import Mean
from vit_jax.paper.claims.counts import Pilot
from vit_jax.paper.runs import Results

NAME = 'points in percent'


# The sample spread of three values from which a spread of 1 is expected.
_SAMPLE = np.sqrt(2 / (1 + 1 / np.log(2)))


def _pilot(lead):
  """Returns a pilot of two models that differ by `lead`, with spread 1."""
  ends = (-_SAMPLE, 0.0, _SAMPLE)
  return Pilot(
    {
      NAME: {
        ONE.name: [10 + lead + end for end in ends],
        OTHER.name: [10 + end for end in ends],
      }
    },
    {},
  )


def _need(lead, *, family=1, scale='mini', seeds='auto', pilot=None):
  return counts.need(
    _lead(Table({})), family, scale, seeds, pilot or _pilot(lead)
  )


@pytest.mark.parametrize(('lead', 'most'), [(30, 2), (4, 3), (2.6, 4)])
def test_enough_pretrainings_have_80_percent_power(lead, most):
  found = _need(lead)
  assert found.count == found.planned == most
  assert found.power >= decision.POWER
  assert _need(lead, seeds=most - 1).power < decision.POWER
  # The sign of the pilot's difference does not matter.
  assert _need(-lead).count == most


@pytest.mark.parametrize(
  ('lead', 'count', 'family'), [(2.5, 4, 1), (9.0, 2, 1), (9.0, 3, 5)]
)
def test_power_is_the_fraction_of_repetitions_with_an_answer(
  lead, count, family
):
  planned = _need(lead, seeds=count, family=family).power
  rng = np.random.default_rng(7)
  answered = []
  for _ in range(1000):
    one, other = rng.normal((lead, 0), 1, (count, 2)).T
    outcome = decision.outcome([list(one), list(-other)])
    p = {'this': decision.verdict([outcome]).p}
    # The others of its family are not certain.
    p |= {str(i): 1.0 for i in range(family - 1)}
    answered.append(decision.holm(p)['this'] < decision.LEVEL)
  assert 0.2 < planned < 0.98
  assert np.mean(answered) == pytest.approx(planned, abs=0.05)


def test_more_claims_need_more_pretrainings():
  assert _need(2.5, family=10).count > _need(2.5).count


def test_small_differences_are_not_chased():
  found = _need(0.2)
  assert found.count is None  # More than `counts.LIMIT`.
  # With the most, it would still be hopeless.
  assert found.planned == counts.USUAL
  assert found.power < 0.2
  # Here the most have a fair chance.
  found = _need(1.6)
  assert found.count > found.planned == counts.MOST['mini']
  # But the plan says what it would decide.
  smallest = found.detectable['lead']
  again = _need(smallest, seeds=found.planned)
  assert again.power == pytest.approx(decision.POWER, abs=0.03)


def test_runs_that_the_pilot_does_not_know_get_the_usual_number():
  found = _need(0, pilot=counts.EMPTY)
  assert (found.planned, found.count, found.power) == (counts.USUAL, None, None)
  assert found.detectable == {'lead': None}
  assert _need(0, seeds=2, pilot=counts.EMPTY).planned == 2
  assert _need(9, seeds=1).planned == 1


def test_rough_spreads_are_drawn_towards_the_typical_one():
  pilot = Pilot({NAME: {ONE.name: [1.0, 1.0, 1.0], OTHER.name: [0.0, 4.0]}}, {})
  # Of two values, half of all variances are below 0.455 of the true one; of
  # three, below 0.693.
  typical = np.sqrt((0 / 0.693 + 8 / 0.455) / 2)
  calm, wild = (pilot.spread(Mean(Table({}), s)) for s in (ONE, OTHER))
  assert calm == pytest.approx(np.sqrt((2 * 0 + 2 * typical**2) / 4), rel=1e-3)
  assert wild == pytest.approx(np.sqrt((1 * 8 + 2 * typical**2) / 3), rel=1e-3)


def test_numbers_of_earlier_runs_are_a_pilot(tmp_path):
  table = Table({'ViT-B/16': (5.0, 6.0), 'ViT-B/32': (1.0, 2.5)})
  results = Results([], {}, counts={ONE: 2, OTHER: 2})
  values = answers.numbers([_lead(table)], results)
  path = tmp_path / 'numbers.json'
  path.write_text(json.dumps({'values': values, 'minutes': {'a': 1.5}}))
  pilot = counts.read(path)
  assert pilot.effect(_lead(table).contrasts[0].sum) == pytest.approx(3.75)
  assert pilot.minutes == {'a': 1.5}


@pytest.mark.parametrize(
  ('text', 'message'),
  [(None, 'does not exist'), ('{', 'is not a numbers.json'), ('{}', 'values')],
)
def test_a_file_that_is_no_pilot_is_refused(tmp_path, text, message):
  path = tmp_path / 'numbers.json'
  if text is not None:
    path.write_text(text)
  with pytest.raises(ValueError, match=message):
    counts.read(path)
