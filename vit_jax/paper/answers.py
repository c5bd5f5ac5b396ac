"""Decides claims from finished runs.

Miniatures have learned or not, so their accuracies have two humps, and a t-test
of a few of them errs far more often than it says. So the tests are exact: they
permute seeds. A difference of two means is compared with all ways to deal the
runs to two groups. Another sum is computed seed by seed, and compared with all
ways to flip the signs of these values. Intervals are Welch's.

Holm's method corrects for all claims on a page, so that the page has any wrong
"yes" or "no" with a probability of 5%. Flipping signs assumes that a sum is as
often above its mean as below it; where it is not, this can be 6%.
"""

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from vit_jax.paper import report
from vit_jax.paper.claims import Claim, Mean, Sum
from vit_jax.paper.runs import Results

LEVEL = 0.05
MISSING, UNDECIDED = 'missing', 'undecided'
# The answers of single runs, which may not hold for others.
SEEN, NOT_SEEN = 'seen once', 'not seen'
# A claim that a miniature cannot show.
NOT_ASKED = 'not in miniature'
# Up to this many permutations, all are counted; beyond, so many random ones.
_PERMUTATIONS = 20_000


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What runs say about a sum of independent means.

  Attributes:
    estimate: of the sum.
    above: one-sided p-value of the sum being above 0; 1 if it has none.
    below: the same of the sum being below 0.
    interval: Welch's 95% confidence interval; None without any spread.
  """

  estimate: float
  above: float = 1.0
  below: float = 1.0
  interval: tuple[float, float] | None = None


def outcome(
  groups: Sequence[Sequence[float]], *, difference: bool = False
) -> Outcome:
  """Tests the sum of the means of independent groups.

  Args:
    groups: the values of each mean, already multiplied by its weight, in the
      order of the seeds.
    difference: whether it is one mean minus another: two groups, of which the
      second has its sign changed, and which are alike if both are equal.
  """
  estimate = math.fsum(statistics.fmean(group) for group in groups)
  fewest = min(map(len, groups))
  if fewest < 2:
    return Outcome(estimate)
  arrays = [np.array(group, float) for group in groups]
  if difference:
    found = _dealt(arrays[0], -arrays[1])
  else:
    found = _flipped(sum(array[:fewest] for array in arrays))
  # The first is the observed one; sums in another order round differently.
  near = 1e-9 * np.abs(found).max()
  above = 1 - np.mean(found < found[0] - near)
  below = 1 - np.mean(found > found[0] + near)
  variances = [array.var(ddof=1) / len(array) for array in arrays]
  variance, interval = sum(variances), None
  if variance:
    freedom = variance**2 / sum(
      v**2 / (len(array) - 1)
      for v, array in zip(variances, arrays, strict=True)
    )
    margin = float(stats.t.ppf(1 - LEVEL / 2, freedom) * variance**0.5)
    interval = estimate - margin, estimate + margin
  return Outcome(estimate, float(above), float(below), interval)


def _dealt(one: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Returns the differences of means of all ways to deal values to two groups.

  The first is that of `one` and `other`.
  """
  every, count = np.concatenate([one, other]), len(one)
  if math.comb(len(every), count) <= _PERMUTATIONS:
    ways = itertools.combinations(range(len(every)), count)
    firsts = every[np.array([*ways])].mean(1)
  else:
    several = np.tile(every, (_PERMUTATIONS, 1))
    np.random.default_rng(0).permuted(several[1:], axis=1, out=several[1:])
    firsts = several[:, :count].mean(1)
  return firsts - (every.sum() - count * firsts) / len(other)


def _flipped(values: np.ndarray) -> np.ndarray:
  """Returns the means for all ways to flip signs; the first flips none."""
  if 2 ** len(values) <= _PERMUTATIONS:
    signs = np.array([*itertools.product((1, -1), repeat=len(values))])
  else:
    rng = np.random.default_rng(0)
    signs = rng.choice((1, -1), (_PERMUTATIONS, len(values)))
    signs[0] = 1
  return signs @ values / len(values)


def verdict(tests: Sequence[Outcome]) -> tuple[bool, float]:
  """Returns whether a claim rather holds, and the two-sided p-value of that.

  "Yes" needs all tests above 0; "no" needs one below 0, after Bonferroni's
  correction for their number.
  """
  yes = max(test.above for test in tests)
  no = min(1.0, len(tests) * min(test.below for test in tests))
  return yes <= no, min(1.0, 2 * min(yes, no))


def holm(p: Mapping[str, float]) -> dict[str, float]:
  """Returns the p-values of a family after Holm's correction."""
  found, highest = {}, 0.0
  for rank, name in enumerate(sorted(p, key=p.get)):
    highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
    found[name] = highest
  return found


# Returns a value for each pre-training of a mean; None while one is missing.
Lookup = Callable[[Mean], Sequence[float] | None]


def lookup(results: Results) -> Lookup:
  """Returns what reads the values of a mean from results, each once."""

  @functools.cache
  def values(mean: Mean) -> tuple[float, ...] | None:
    found = mean.by_start(results)
    return found and found.values

  return values


def test(sum_: Sum, values: Lookup) -> Outcome | None:
  """Tests a sum; None while a run is missing.

  Several numbers of one pre-training are not independent, so their weighted sum
  is one value of the test.
  """
  terms = [(weight, mean) for weight, mean in sum_.terms if weight]
  groups: dict = {}
  for weight, mean in terms:
    found = values(mean)
    if found is None:
      return None
    groups.setdefault(mean.start, []).append([weight * x for x in found])
  two = [(abs(weight), mean.measure) for weight, mean in terms]
  return outcome(
    [[*map(sum, zip(*found, strict=True))] for found in groups.values()],
    difference=len(groups) == len(two) == 2
    and two[0] == two[1]
    and terms[0][0] != terms[1][0],
  )


def of_page(
  claims: Mapping[str, tuple[Claim, Lookup]], *, miniature: bool = False
) -> dict[str, report.Claim]:
  """Answers all claims of a page, which are one family.

  Args:
    claims: `item.key` -> the claim, and what looks up its values.
    miniature: whether the runs are a miniature's, which some claims do not ask.
  """
  asked = {
    name: one
    for name, one in claims.items()
    if not (miniature and one[0].not_in_miniature)
  }
  outcomes = {
    name: [test(sum_, values) for sum_ in claim.contrasts.values()]
    for name, (claim, values) in asked.items()
  }
  verdicts = {
    name: verdict(tests)
    for name, tests in outcomes.items()
    if None not in tests
  }
  # A claim without runs counts in the family, too: it was asked.
  corrected = holm({n: verdicts[n][1] if n in verdicts else 1.0 for n in asked})
  found = {}
  for name, (claim, values) in claims.items():
    if name not in asked:
      answer, evidence = NOT_ASKED, claim.not_in_miniature
    elif name not in verdicts:
      gone = [m.start.name for m in claim.means() if values(m) is None]
      names = '; '.join(dict.fromkeys(gone))
      answer, evidence = MISSING, f'Not all runs are finished: {names}.'
    else:
      tests, p = outcomes[name], corrected[name]
      holds, _ = verdicts[name]
      if all(len(values(mean)) == 1 for mean in claim.means()):
        seen = all(one.estimate > 0 for one in tests)
        answer = SEEN if seen else NOT_SEEN
      elif p < LEVEL:
        answer = 'yes' if holds else 'no'
      else:
        answer = UNDECIDED
      evidence = _evidence(claim, tests, values, p, len(asked))
    found[name] = report.Claim(claim.statement, answer, evidence)
  return found


def _evidence(
  claim: Claim,
  tests: Sequence[Outcome],
  values: Lookup,
  p: float,
  family: int,
) -> str:
  """Returns the numbers of each measure, then the tests."""
  measured: dict[str, list[str]] = {}
  for mean in claim.means():
    measured.setdefault(mean.measure.name, []).append(
      f'{mean.start.name} {text(values(mean), mean.measure.digits)}'
    )
  sentences = [
    f'{name[:1].upper()}{name[1:]}: {"; ".join(found)}.'
    for name, found in measured.items()
  ]
  for what, one in zip(claim.contrasts, tests, strict=True):
    sentences.append(_tested(what, claim.contrasts[what], one))
  if claim.more:
    sentences.append(claim.more(functools.partial(test, values=values)))
  if any(len(values(mean)) > 1 for mean in claim.means()):
    amount = f'p = {p:.2g}' if p >= 0.0001 else 'p < 0.0001'
    sentences.append(
      f'{amount}, corrected for the {family} claims on this page.'
      if family > 1
      else f'{amount}.'
    )
  else:
    sentences.append('One run shows no spread.')
  return ' '.join(filter(None, [*sentences, claim.about]))


def _tested(what: str, sum_: Sum, one: Outcome) -> str:
  digits = max(mean.measure.digits for w, mean in sum_.terms if w)
  sentence = f'{what[:1].upper()}{what[1:]}: {one.estimate:+.{digits}f}'
  if one.interval:
    low, high = one.interval
    sentence += f' (95% interval {low:+.{digits}f} to {high:+.{digits}f})'
  return f'{sentence}.'


def text(values: Sequence[float], digits: int) -> str:
  """Formats a mean, such as `77.91 ± 0.20 (3 pre-trainings)`."""
  count = len(values)
  if count == 1:
    return f'{values[0]:.{digits}f} (1 pre-training)'
  spread = f' ± {statistics.stdev(values):.{digits}f}'
  return (
    f'{statistics.fmean(values):.{digits}f}{spread} ({count} pre-trainings)'
  )
