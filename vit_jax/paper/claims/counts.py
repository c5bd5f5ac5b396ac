"""How many pre-trainings a claim needs, from the runs of a pilot.

The claims are decided with `decision.POWER` if the differences and spreads are
those of the pilot. A pilot of few runs gives rough spreads, so each spread is
drawn towards the typical one of its measure.
"""

import dataclasses
import functools
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import special

from vit_jax.paper.claims import decision
from vit_jax.paper.claims.claim import Claim, Contrast, Mean, Sum
from vit_jax.paper.runs import Pretraining
from vit_jax.runtime import json_text

AUTO = 'auto'
# Pre-trainings of each mean if the pilot does not know the claim's runs.
USUAL = 3
# The most pre-trainings that `auto` plans for a mean: beyond, the difference is
# too small to be worth the time.
MOST = {'paper': 5, 'mini': 4, 'midi': 5}
# With less power, even the most are not worth the time: it makes the usual
# number.
_WORTHWHILE = 0.4
# Beyond this many, we only say that there are more.
LIMIT = 64
_TRIED = (*range(2, 9), 10, 12, 16, 24, 32, 48, LIMIT)
# Repetitions of a simulation.
_DRAWS = 2000
# Keeps errors above 0 where there is no spread at all.
_TINY = 1e-9
# The weight of a measure's typical spread, in degrees of freedom.
_TYPICAL = 2


@dataclasses.dataclass(frozen=True)
class Pilot:
  """What earlier runs say about differences and spreads.

  Attributes:
    values: measure -> first pre-training -> a value for each pre-training.
    minutes: run -> device minutes.
    assumed: measure -> a spread for measures of which no spread is known.
  """

  values: Mapping[str, Mapping[str, Sequence[float]]]
  minutes: Mapping[str, float]
  assumed: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def mean(self, of: Mean) -> float | None:
    """Returns the pilot's mean; None if it does not know the runs."""
    found = self.lookup(of)
    return statistics.fmean(found) if found else None

  def lookup(self, of: Mean) -> Sequence[float] | None:
    """Returns a value for each pre-training of the pilot; None if unknown."""
    return self.values.get(of.measure.name, {}).get(of.name)

  def spread(self, of: Mean) -> float | None:
    """Returns the standard deviation over pre-trainings that we expect.

    None if the pilot has no spread of the measure at all, and assumes none.
    """
    typical = self._typical.get(of.measure.name)
    if typical is None:
      return self.assumed.get(of.measure.name)
    found = self.values[of.measure.name]
    own = found.get(of.name, ())
    freedom = len(own) - 1
    if freedom < 1:
      return typical
    squares = freedom * statistics.variance(own) + _TYPICAL * typical**2
    return math.sqrt(squares / (freedom + _TYPICAL))

  @functools.cached_property
  def _typical(self) -> dict[str, float]:
    """Measure -> the typical spread of its runs, where some are known."""
    typical = {}
    for measure, found in self.values.items():
      # The median: runs that sometimes fail to learn have far larger spreads
      # than others. Half of all variances of few values are below this part of
      # theirs.
      known = [
        statistics.variance(v)
        / (special.chdtri(len(v) - 1, 0.5) / (len(v) - 1))
        for v in found.values()
        if len(v) > 1
      ]
      if known:
        typical[measure] = math.sqrt(statistics.median(known))
    return typical

  def effect(self, sum_: Sum) -> float | None:
    """Returns a weighted sum of the pilot's means; None if one is unknown."""
    means = [(weight, self.mean(mean)) for weight, mean in sum_.terms if weight]
    if any(mean is None for _, mean in means):
      return None
    return math.fsum(weight * mean for weight, mean in means)

  def spreads(self, sum_: Sum) -> list[float] | None:
    """Returns the weighted spread of each pre-training of a sum.

    Numbers of the same pre-training are taken to vary together at worst, so
    their spreads add up.
    """
    found = []
    for start, terms in sum_.by_start().items():
      own = [(w, self.spread(Mean(measure, start))) for w, measure in terms]
      if any(spread is None for _, spread in own):
        return None
      found.append(math.fsum(abs(w) * spread for w, spread in own))
    return found


EMPTY = Pilot({}, {})


def read(path: pathlib.Path) -> Pilot:
  """Reads a pilot from a JSON file, as `rendering.sections` writes it.

  Raises:
    ValueError: the file does not exist, or is not such a file.
  """
  try:
    found = json_text.loads(path.read_text())
    return Pilot(found['values'], found['minutes'])
  except FileNotFoundError:
    raise ValueError(
      f'{path} does not exist; give a numbers.json that --render wrote.'
    ) from None
  except (json.JSONDecodeError, KeyError, TypeError) as error:
    raise ValueError(
      f'{path} is not a numbers.json that --render wrote: {error!r}.'
    ) from error


@dataclasses.dataclass(frozen=True)
class Need:
  """What it takes to decide a claim.

  Attributes:
    known: whether the pilot knows the differences and the spreads.
    power: the probability of an answer with the planned number; None if
      unknown.
    planned: pre-trainings of each mean that are planned.
    enough: returns `count` up to a limit.
    detects: returns `detectable`.
  """

  known: bool
  power: float | None
  planned: int
  enough: Callable[[int], int | None]
  detects: Callable[[], Mapping[str, float | None]]

  # Both are simulated only if they are asked for, because that takes long.
  @functools.cached_property
  def count(self) -> int | None:
    """Pre-trainings of each mean, for all of the claim's tests together.

    None if the pilot does not know the runs, or if `LIMIT` are too few.
    """
    return self.enough(LIMIT)

  @functools.cached_property
  def detectable(self) -> Mapping[str, float | None]:
    """Test -> the smallest difference that the planned number decides.

    None if the spread is unknown.
    """
    return self.detects()


def need(
  claim: Claim, family: int, scale: str, seeds: str | int, pilot: Pilot
) -> Need:
  """Returns what it takes to decide a claim.

  Args:
    claim: the claim.
    family: the number of claims that Holm's method corrects together.
    scale: a key of `MOST`.
    seeds: `AUTO`, or a number of pre-trainings.
    pilot: has the differences and spreads.
  """
  known = all(
    pilot.mean(mean) is not None and pilot.spread(mean) is not None
    for mean in claim.means()
  )
  level = decision.LEVEL / family

  @functools.cache
  def power(count: int) -> float:
    return _power(claim, pilot, count, level)

  def enough(most: int) -> int | None:
    if not known or seeds != AUTO:
      return None
    tried = (n for n in _TRIED if n <= most)
    return next((n for n in tried if power(n) >= decision.POWER), None)

  planned = seeds
  if seeds == AUTO:
    planned = enough(MOST[scale]) or MOST[scale]
    if not known or power(planned) < _WORTHWHILE:
      planned = USUAL
  return Need(
    known,
    power(planned) if known else None,
    planned,
    enough,
    lambda: {
      contrast.what: _detectable(contrast, pilot, planned, level / 2)
      for contrast in claim.contrasts
    },
  )


def _power(claim: Claim, pilot: Pilot, count: int, level: float) -> float:
  """Returns the probability of an answer, by simulation.

  The values of each mean are drawn from a normal distribution with the pilot's
  mean and spread, and tested as those of runs are. A formula would need the
  degrees of freedom, which the test only estimates: with two or three values it
  promises twice the power.

  Args:
    claim: the pilot knows its means.
    pilot: has them.
    count: pre-trainings of each mean.
    level: the two-sided p-value that counts as certain.
  """
  if count < 2:
    return 0.0
  rng = np.random.default_rng(0)
  values = {
    mean: rng.normal(pilot.mean(mean), pilot.spread(mean), (_DRAWS, count))
    for mean in claim.means()
  }
  above, below = [], []
  for contrast in claim.contrasts:
    groups = [
      sum(weight * values[Mean(measure, start)] for weight, measure in terms)
      for start, terms in contrast.sum.by_start().items()
    ]
    estimate, error, freedom = decision.welch(groups, _above_0(contrast.sum))
    score = estimate / error
    above.append(special.stdtr(freedom, -score))
    below.append(special.stdtr(freedom, score))
  yes, no = decision.directions(above, below)
  return float(np.mean(2 * np.minimum(yes, no) < level))


def floors(sum_: Sum) -> list[float]:
  """Returns the least standard deviation of each pre-training of a sum."""
  return [
    math.hypot(*(weight * measure.floor for weight, measure in terms))
    for terms in sum_.by_start().values()
  ]


def _above_0(sum_: Sum) -> list[float]:
  """Returns `floors` that keep errors above 0 where there is no spread."""
  return [max(floor, _TINY) for floor in floors(sum_)]


def _detectable(
  contrast: Contrast, pilot: Pilot, count: int, level: float
) -> float | None:
  """Returns the smallest effect of one contrast that is decided with `POWER`.

  None if a spread is unknown, or with single runs.

  Args:
    contrast: its own effect does not matter.
    pilot: has the spreads.
    count: pre-trainings of each mean.
    level: the one-sided p-value that counts as certain.
  """
  spreads = pilot.spreads(contrast.sum)
  if spreads is None or count < 2:
    return None
  rng = np.random.default_rng(0)
  groups = [rng.normal(0.0, spread, (_DRAWS, count)) for spread in spreads]
  noise, error, freedom = decision.welch(groups, _above_0(contrast.sum))
  # Each repetition is certain from this effect on.
  needed = special.stdtrit(freedom, 1 - level) * error - noise
  return float(np.quantile(needed, decision.POWER))


def of_starts(needs: Sequence[tuple[Claim, Need]]) -> dict[Pretraining, int]:
  """Returns first pre-training -> number of pre-trainings, for a family."""
  found: dict[Pretraining, int] = {}
  for claim, its in needs:
    for start in claim.starts():
      found[start] = max(its.planned, found.get(start, 0))
  return found
