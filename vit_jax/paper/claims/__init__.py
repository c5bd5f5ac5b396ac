"""What the paper says, asked of our numbers: how an answer is decided.

A difference counts if its sign is certain with 95% confidence; otherwise this
many runs do not decide. The values of a number must be independent: one for
each pre-training, see `averages.by_pretraining`.
"""

import math
from collections.abc import Sequence

from scipy import special

from vit_jax.paper.report import Number

UNDECIDED = 'not at this scale'
# As many equal values are taken to say that there is no spread.
_ENOUGH_EQUAL = 3


def compare(
  better: Number | None, worse: Number | None, *, parts: int = 1
) -> str:
  """Whether one mean is above another, with 95% confidence (Welch's t-test).

  Args:
    better: the one that is to be above.
    worse: the other.
    parts: see `decide`.

  Returns:
    'yes', 'no', 'not at this scale' if these runs do not decide, or 'missing'.
  """
  return decide([(1.0, better), (-1.0, worse)], parts=parts)


def decide(
  terms: Sequence[tuple[float, Number | None]], *, parts: int = 1
) -> str:
  """Whether a weighted sum of means is above 0, with 95% confidence.

  A single value says nothing of the spread, and so decides nothing. Nor do two
  equal ones: accuracies are counts of images, so that runs agree by chance, and
  the test would take them for certain. From three equal values on, a spread of
  0 is believed.

  Args:
    terms: (weight, mean), with independent values; None where a run is missing.
    parts: of the claim that this is one of. One that is not so denies the whole
      claim, so that 'no' asks for more the more chances of it there are
      (Bonferroni); 'yes' needs all of them anyway.

  Returns:
    What `compare` does.
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
  """Whether the values say how far others would be from them."""
  return bool(number.std) or len(number.values) >= _ENOUGH_EQUAL


def every(answers: list[str]) -> str:
  """The answer to a claim of several parts."""
  for answer in ('missing', 'no', UNDECIDED):
    if answer in answers:
      return answer
  return 'yes'


def text(number: Number | None, digits: int, of: str = 'run') -> str:
  """A mean with its spread, such as `77.91 ± 0.20 (3 runs)`.

  Args:
    number: ours.
    digits: after the point.
    of: what each of its values is of, in the singular.
  """
  if number is None:
    return 'missing'
  spread = '' if number.std is None else f' ± {number.std:.{digits}f}'
  count = len(number.values)
  plural = '' if count == 1 else 's'
  return f'{number.mean:.{digits}f}{spread} ({count} {of}{plural})'
