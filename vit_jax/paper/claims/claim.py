"""What a claim of the paper rests on: weighted sums of means over runs.

A claim is written down before any run, so the runs that it needs, and whether
they can decide it, follow from the claim alone.
"""

import dataclasses
from collections.abc import Callable

from vit_jax.paper.claims.decision import Outcome
from vit_jax.paper.claims.measures import Measure
from vit_jax.paper.runs import Node, Pretraining, seeds


@dataclasses.dataclass(frozen=True)
class Mean:
  """The mean of a measure over pre-trainings that differ in their seed.

  Attributes:
    measure: gives a number for each pre-training.
    start: the first of the pre-trainings.
  """

  measure: Measure
  start: Pretraining

  @property
  def name(self) -> str:
    return self.start.name

  def nodes(self, count: int) -> tuple[Node, ...]:
    """Returns the runs behind the mean of `count` pre-trainings."""
    return tuple(
      node
      for start in seeds(self.start, count)
      for node in self.measure.nodes(start)
    )


@dataclasses.dataclass(frozen=True)
class Sum:
  """A weighted sum of means.

  Attributes:
    terms: (weight, mean); each mean occurs once.
  """

  terms: tuple[tuple[float, Mean], ...]

  def __add__(self, other: 'Sum') -> 'Sum':
    weights: dict[Mean, float] = {}
    for weight, mean in (*self.terms, *other.terms):
      weights[mean] = weights.get(mean, 0.0) + weight
    return Sum(tuple((weight, mean) for mean, weight in weights.items()))

  def __mul__(self, factor: float) -> 'Sum':
    return Sum(tuple((factor * weight, mean) for weight, mean in self.terms))

  __rmul__ = __mul__

  def __sub__(self, other: 'Sum') -> 'Sum':
    return self + -1.0 * other

  def by_start(self) -> dict[Pretraining, list[tuple[float, Measure]]]:
    """Returns the terms of each pre-training.

    Several numbers of one pre-training are not independent, so their weighted
    sum is one value of the test.
    """
    found: dict[Pretraining, list[tuple[float, Measure]]] = {}
    for weight, mean in self.terms:
      if weight:
        found.setdefault(mean.start, []).append((weight, mean.measure))
    return found


def total(measure: Measure, start: Pretraining) -> Sum:
  """Returns the mean of a measure as a sum of one term."""
  return Sum(((1.0, Mean(measure, start)),))


@dataclasses.dataclass(frozen=True)
class Contrast:
  """A sum that a claim expects above 0.

  Attributes:
    what: what the sum is, such as `lead of ViT-L/16 over ViT-B/16`.
    sum: of independent means.
  """

  what: str
  sum: Sum


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of the paper as tests on runs.

  Attributes:
    key: a short name that is unique within its item, such as `adam`.
    statement: the paper's statement in our words, with its section.
    contrasts: all must be above 0.
    about: sentences on the choice of the tests, if the paper leaves a choice.
    more: returns a further sentence for the evidence, from a function that
      tests any sum; it returns None while a run is missing.
  """

  key: str
  statement: str
  contrasts: tuple[Contrast, ...]
  about: str = ''
  more: Callable[[Callable[[Sum], Outcome | None]], str] | None = None

  def means(self) -> list[Mean]:
    """Returns the means of all contrasts, each once."""
    return list(
      dict.fromkeys(
        mean
        for test in self.contrasts
        for weight, mean in test.sum.terms
        if weight
      )
    )

  def starts(self) -> list[Pretraining]:
    """Returns the first pre-trainings of the means, each once."""
    return list(dict.fromkeys(mean.start for mean in self.means()))
