"""How a claim is decided from the values of independent pre-trainings.

A claim consists of tests. Each test is a weighted sum of means that the claim
expects above 0, and its answer comes from Welch's t-test: the means may differ
in their spread and in their number of values. 'Yes' needs all tests; a single
one is enough for 'no', so the p-values of a denial are multiplied by their
number (Bonferroni). The claims of an item are a family: Holm's method corrects
their p-values, so that with 95% confidence no answer of the family is wrong.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

# The probability of a wrong answer that a family of claims may have.
LEVEL = 0.05
# The probability of an answer that enough pre-trainings should give.
POWER = 0.8
# From this many equal values on, we believe that there is no spread.
_ENOUGH_EQUAL = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What the values say about a weighted sum of means.

  Attributes:
    estimate: of the sum.
    error: its standard error; None if the values do not show their spread.
    freedom: Welch and Satterthwaite's degrees of freedom; infinite without any
      spread.
  """

  estimate: float
  error: float | None
  freedom: float

  @property
  def above(self) -> float:
    """The one-sided p-value of a sum above 0; 1 if nothing can be said."""
    return self._tail(1)

  @property
  def below(self) -> float:
    """The one-sided p-value of a sum below 0; 1 if nothing can be said."""
    return self._tail(-1)

  def _tail(self, sign: int) -> float:
    if self.error is None or not self.estimate:
      return 1.0
    if not self.error:
      return 0.0 if sign * self.estimate > 0 else 1.0
    score = sign * self.estimate / self.error
    return float(special.stdtr(self.freedom, -score))

  def interval(self) -> tuple[float, float] | None:
    """Returns the 95% confidence interval; None if nothing can be said."""
    if self.error is None:
      return None
    margin = 0.0
    if self.error:
      margin = special.stdtrit(self.freedom, 1 - 0.05 / 2) * self.error
    return self.estimate - margin, self.estimate + margin


def outcome(
  groups: Sequence[Sequence[float]], floors: Sequence[float] = ()
) -> Outcome:
  """Returns what independent groups say about the sum of their means.

  A single value has no spread, and so decides nothing. Two equal values decide
  nothing either: accuracies are counts of images, so runs may agree by chance,
  and the test would take that for certainty.

  Args:
    groups: the values of each mean, already multiplied by its weight.
    floors: the least standard deviation that is believed of each group, such as
      what the number of test images allows; () for 0.
  """
  estimate = math.fsum(statistics.fmean(group) for group in groups)
  if not all(map(_has_spread, groups)):
    return Outcome(estimate, None, 0.0)
  floors = floors or [0.0] * len(groups)
  if not any(floors) and all(len({*group}) == 1 for group in groups):
    return Outcome(estimate, 0.0, math.inf)
  _, error, freedom = welch([np.array(group) for group in groups], floors)
  return Outcome(estimate, float(error), float(freedom))


def welch(
  groups: Sequence[np.ndarray], floors: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the sum of means, its standard error and degrees of freedom.

  Args:
    groups: [..., values] of each mean, with equal leading axes, over which
      tests are repeated; at least two values, and some spread or floor.
    floors: see `outcome`.
  """
  variances = [
    np.maximum(group.var(axis=-1, ddof=1), floor**2) / group.shape[-1]
    for group, floor in zip(groups, floors, strict=True)
  ]
  variance = sum(variances)
  freedom = variance**2 / sum(
    v**2 / (group.shape[-1] - 1)
    for v, group in zip(variances, groups, strict=True)
  )
  estimate = sum(group.mean(axis=-1) for group in groups)
  return estimate, np.sqrt(variance), freedom


def _has_spread(values: Sequence[float]) -> bool:
  """Whether the values show how far other runs would differ."""
  if len(values) < 2:
    return False
  return len({*values}) > 1 or len(values) >= _ENOUGH_EQUAL


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The direction in which a claim's tests point, and how certain that is.

  Attributes:
    holds: whether the more certain direction is that the claim holds.
    p: the two-sided p-value of that direction, over all tests of the claim.
  """

  holds: bool
  p: float


def verdict(tests: Sequence[Outcome]) -> Verdict:
  """Returns the verdict of a claim's tests, before Holm's correction."""
  yes, no = directions(
    [test.above for test in tests], [test.below for test in tests]
  )
  return Verdict(bool(yes <= no), float(min(1.0, 2 * min(yes, no))))


def directions(
  above: Sequence[np.ndarray], below: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the one-sided p-values of 'yes' and of 'no'.

  Args:
    above: the p-value of each test's sum above 0, a number or repetitions.
    below: the same of a sum below 0.
  """
  no = len(below) * np.min(below, axis=0)
  return np.max(above, axis=0), np.minimum(1.0, no)


def holm(p: Mapping[str, float]) -> dict[str, float]:
  """Returns the p-values of a family after Holm's correction."""
  found, highest = {}, 0.0
  for rank, name in enumerate(sorted(p, key=p.get)):
    highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
    found[name] = highest
  return found
