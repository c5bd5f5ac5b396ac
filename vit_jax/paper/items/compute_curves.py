"""Accuracy as a function of compute, which Figure 5's claims compare (4.4)."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper import claims
from vit_jax.paper.answers import Outcome
from vit_jax.paper.claims import Sum

# The largest ratio at which all ViTs must be comparable to measure the ratio.
_FARTHEST = 4.0
# The ratios among which it is searched.
_RATIOS = tuple(2 ** (step / 16) for step in range(-48, 65))


def interpolate(points: Mapping[float, Sum], compute: float) -> Sum | None:
  """Returns the accuracy that a family is taken to have at some compute.

  It is interpolated between the two neighbouring runs, linearly in the
  logarithm of the compute.

  Args:
    points: compute -> accuracy.
    compute: where to interpolate.

  Returns:
    None outside of the range of the points' compute.
  """
  for low, high in itertools.pairwise(sorted(points)):
    if low <= compute <= high:
      part = math.log(compute / low) / math.log(high / low)
      return (1 - part) * points[low] + part * points[high]
  return None


def slope(points: Mapping[float, Sum]) -> Sum:
  """Returns the least-squares slope of accuracy over doublings of compute."""
  xs = [math.log2(compute) for compute in points]
  middle = math.fsum(xs) / len(xs)
  scale = math.fsum((x - middle) ** 2 for x in xs)
  first, *rest = (
    (x - middle) / scale * accuracy
    for x, accuracy in zip(xs, points.values(), strict=True)
  )
  return sum(rest, start=first)


def ratio(
  leads: Callable[[float], Mapping[str, Sum]],
  test: Callable[[Sum], Outcome | None],
) -> str:
  """Returns a sentence on the ratio of compute at equal accuracy.

  It is the ratio at which the mean lead ends. Its interval has all ratios at
  which the mean lead is not certain. The mean is over the same ViTs at all
  ratios: those that can be compared with ResNets of `_FARTHEST` times their
  compute.

  Args:
    leads: ratio -> the leads of those ViTs that can be compared.
    test: tests a sum.
  """
  vits = [*leads(_FARTHEST)]
  ends: dict[float, tuple[float, float, float]] = {}
  for ratio in _RATIOS:
    found = leads(ratio)
    if vits and {*vits} <= {*found}:
      outcome = test(claims.average([found[vit] for vit in vits]))
      if outcome and outcome.interval:
        low, high = outcome.interval
        ends[ratio] = (low, outcome.estimate, high)
  if not ends:
    return ''
  low, equal, high = (_end(ends, which) for which in range(3))
  return (
    f'At equal accuracy ResNets need {equal} times the compute of'
    f' {", ".join(vits)} (95% interval: {low} to {high}).'
  )


def _end(leads: Mapping[float, Sequence[float]], which: int) -> str:
  """Returns the ratio at which the lead first ends, in words."""
  ended = [ratio for ratio in leads if leads[ratio][which] <= 0]
  if not ended:
    return f'more than {max(leads):.2g}'
  if ended[0] == min(leads):
    return f'less than {ended[0]:.2g}'
  return f'{ended[0]:.2g}'
