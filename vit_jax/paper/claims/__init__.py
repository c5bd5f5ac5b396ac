"""The paper's claims, tested on our numbers: how an answer is decided.

A difference counts if its sign is certain with 95% confidence; otherwise there
are too few runs to decide. The values of a number must be independent: one for
each pre-training, see `averages.by_pretraining`.
"""

import math
from collections.abc import Sequence

from scipy import special

from vit_jax.paper.report import Number

UNDECIDED = 'undecided'
# The answers of a single run, which may not hold for another one.
SEEN, NOT_SEEN = 'seen once', 'not seen'
# From this many equal values on, we believe that there is no spread.
_ENOUGH_EQUAL = 3


def compare(
  better: Number | None, worse: Number | None, *, parts: int = 1
) -> str:
  """Whether one mean is above another, with 95% confidence (Welch's t-test).

  Args:
    better: the mean that the claim expects to be above.
    worse: the other mean.
    parts: see `decide`.

  Returns:
    'yes', 'no', 'undecided' if the runs do not decide, or 'missing'.
  """
  return decide([(1.0, better), (-1.0, worse)], parts=parts)


def decide(
  terms: Sequence[tuple[float, Number | None]], *, parts: int = 1
) -> str:
  """Whether a weighted sum of means is above 0, with 95% confidence.

  A single value has no spread, and so decides nothing. Two equal values decide
  nothing either: accuracies are counts of images, so runs may agree by chance,
  and the test would take that for certainty. From three equal values on, we
  believe a spread of 0.

  Args:
    terms: (weight, mean), with independent values; None where a run is missing.
    parts: number of tests that the whole claim consists of. A single 'no'
      denies the claim, so 'no' needs more certainty the more tests there are
      (Bonferroni); 'yes' needs all tests anyway.

  Returns:
    An answer, as `compare` does.
  """
  if any(number is None for _, number in terms):
    return 'missing'
  if not all(_has_spread(number) for _, number in terms):
    return UNDECIDED
  total = sum(weight * number.mean for weight, number in terms)
  variances = [
    (weight * number.std) ** 2 / len(number.values) for weight, number in terms
  ]
  variance = sum(variances)
  if variance:
    # Welch and Satterthwaite's degrees of freedom.
    freedom = variance**2 / sum(
      v**2 / (len(number.values) - 1)
      for v, (_, number) in zip(variances, terms, strict=True)
    )
    tail = 0.025 if total > 0 else 0.025 / parts
    if abs(total) <= special.stdtrit(freedom, 1 - tail) * math.sqrt(variance):
      return UNDECIDED
  if not total:
    return UNDECIDED
  return 'yes' if total > 0 else 'no'


def _has_spread(number: Number) -> bool:
  """Whether the values show how far other runs would differ."""
  return bool(number.std) or len(number.values) >= _ENOUGH_EQUAL


def every(answers: list[str]) -> str:
  """Returns the answer to a claim from the answers to all of its parts."""
  for answer in ('missing', 'no', UNDECIDED):
    if answer in answers:
      return answer
  return 'yes'


def of_one_run(answer: str) -> str:
  """Returns an answer from tests within one run: its heads, or its images."""
  return {'yes': SEEN, 'no': NOT_SEEN}.get(answer, answer)


def text(number: Number | None, digits: int, of: str = 'run') -> str:
  """Formats a mean with its spread, such as `77.91 ± 0.20 (3 runs)`.

  Args:
    number: ours.
    digits: number of digits after the decimal point.
    of: what each value belongs to, in the singular.
  """
  if number is None:
    return 'missing'
  spread = '' if number.std is None else f' ± {number.std:.{digits}f}'
  count = len(number.values)
  plural = '' if count == 1 else 's'
  return f'{number.mean:.{digits}f}{spread} ({count} {of}{plural})'
