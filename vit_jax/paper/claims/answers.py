"""Answers the claims of an item from its runs."""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper.claims import counts, decision
from vit_jax.paper.claims.claim import Claim, Contrast, Mean, Sum
from vit_jax.paper.claims.decision import Outcome
from vit_jax.paper.report import Claim as Answered
from vit_jax.paper.runs import Results

MISSING, UNDECIDED = 'missing', 'undecided'
# The answers of single runs, which may not hold for others.
SEEN, NOT_SEEN = 'seen once', 'not seen'


# Returns a value for each pre-training of a mean; None while one is missing.
Lookup = Callable[[Mean], Sequence[float] | None]


def of_item(claims: Sequence[Claim], results: Results) -> list[Answered]:
  """Returns the answers to all claims of an item from finished runs."""
  return of_values(claims, functools.partial(_values, results=results))


def of_values(claims: Sequence[Claim], lookup: Lookup) -> list[Answered]:
  """Returns the answers to a family of claims, such as all of an item.

  Args:
    claims: the family.
    lookup: returns the values of a mean.
  """
  values = {mean: lookup(mean) for claim in claims for mean in claim.means()}
  outcomes = {
    claim.key: [_outcome(test.sum, values) for test in claim.contrasts]
    for claim in claims
    if not any(values[mean] is None for mean in claim.means())
  }
  verdicts = {key: decision.verdict(tests) for key, tests in outcomes.items()}
  # A claim without runs counts in its family, too: it was asked.
  corrected = decision.holm(
    {
      claim.key: verdicts[claim.key].p if claim.key in verdicts else 1.0
      for claim in claims
    }
  )
  found = []
  for claim in claims:
    if claim.key not in outcomes:
      found.append(Answered(claim.statement, MISSING, _missing(claim, values)))
      continue
    tests, p = outcomes[claim.key], corrected[claim.key]
    single = all(len(values[mean]) == 1 for mean in claim.means())
    if single:
      holds = all(test.estimate > 0 for test in tests)
      answer = SEEN if holds else NOT_SEEN
    elif p < decision.LEVEL:
      answer = 'yes' if verdicts[claim.key].holds else 'no'
    else:
      answer = UNDECIDED
    found.append(
      Answered(
        claim.statement,
        answer,
        _evidence(claim, tests, values, p, len(claims), lookup),
      )
    )
  return found


Values = Mapping[Mean, Sequence[float] | None]


def _values(mean: Mean, *, results: Results) -> list[float] | None:
  """Returns a value for each pre-training; None while one is missing."""
  found = [
    mean.measure.value(results, start) for start in results.seeds(mean.start)
  ]
  return None if None in found else found


def _outcome(sum_: Sum, values: Values) -> Outcome:
  groups, least = [], counts.floors(sum_)
  for start, terms in sum_.by_start().items():
    columns = zip(
      *(values[Mean(measure, start)] for _, measure in terms), strict=True
    )
    groups.append(
      [
        sum(weight * x for (weight, _), x in zip(terms, column, strict=True))
        for column in columns
      ]
    )
  return decision.outcome(groups, least)


def _further(sum_: Sum, *, lookup: Lookup) -> Outcome | None:
  """Tests a sum that may have other means than its claim's contrasts."""
  values = {mean: lookup(mean) for _, mean in sum_.terms}
  return None if None in values.values() else _outcome(sum_, values)


def numbers(
  claims: Sequence[Claim], results: Results
) -> dict[str, dict[str, list[float]]]:
  """Returns measure -> first pre-training -> values, as far as they exist.

  This is the form of `counts.Pilot.values`.
  """
  found: dict[str, dict[str, list[float]]] = {}
  for claim in claims:
    for mean in claim.means():
      values = _values(mean, results=results)
      if values is not None:
        found.setdefault(mean.measure.name, {})[mean.name] = values
  return found


def _missing(claim: Claim, values: Values) -> str:
  lacking = [mean for mean in claim.means() if values[mean] is None]
  names = dict.fromkeys(mean.name for mean in lacking)
  return f'Not all runs are finished: {"; ".join(names)}.'


def _evidence(
  claim: Claim,
  tests: Sequence[Outcome],
  values: Values,
  p: float,
  family: int,
  lookup: Lookup,
) -> str:
  """Returns the numbers of each measure, then the tests."""
  measured: dict[str, list[str]] = {}
  for mean in claim.means():
    measured.setdefault(mean.measure.name, []).append(
      f'{mean.name} {text(values[mean], mean.measure.digits)}'
    )
  sentences = [
    f'{name[:1].upper()}{name[1:]}: {"; ".join(found)}.'
    for name, found in measured.items()
  ]
  for test, outcome in zip(claim.contrasts, tests, strict=True):
    sentences.append(f'{_test(test, outcome)}.')
  if claim.more:
    sentences.append(claim.more(functools.partial(_further, lookup=lookup)))
  if all(outcome.error is not None for outcome in tests):
    amount = f'p = {p:.2g}' if p >= 0.0001 else 'p < 0.0001'
    sentences.append(
      f'{amount}, corrected for the {family} claims of this item.'
      if family > 1
      else f'{amount}.'
    )
  else:
    sentences.append('Too few different values to know their spread.')
  if claim.about:
    sentences.append(claim.about)
  return ' '.join(filter(None, sentences))


def _test(test: Contrast, outcome: Outcome) -> str:
  digits = max(mean.measure.digits for weight, mean in test.sum.terms if weight)
  sentence = (
    f'{test.what[:1].upper()}{test.what[1:]}: {outcome.estimate:+.{digits}f}'
  )
  interval = outcome.interval()
  if interval:
    low, high = interval
    sentence += f' (95% interval {low:+.{digits}f} to {high:+.{digits}f})'
  return sentence


def text(values: Sequence[float], digits: int) -> str:
  """Formats a mean, such as `77.91 ± 0.20 (3 pre-trainings)`."""
  count = len(values)
  if count == 1:
    return f'{values[0]:.{digits}f} (1 pre-training)'
  spread = f' ± {statistics.stdev(values):.{digits}f}'
  return (
    f'{statistics.fmean(values):.{digits}f}{spread} ({count} pre-trainings)'
  )
