"""What a claim of the paper rests on: weighted sums of means over runs.

A claim is written down before any run, so the runs that it needs follow from
the claim alone. `answers` decides it from finished runs.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.paper import numbers
from vit_jax.paper.report import Number
from vit_jax.paper.runs import (
  ACCURACY,
  FEW_SHOT,
  Node,
  Pretraining,
  Results,
  Transfer,
  across,
  vtab_nodes,
  with_start,
)
from vit_jax.sweep.spec import Value

# Measures. --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measure:
  """A number of a pre-training, and the runs that give it.

  Attributes:
    name: unique among all measures, and readable, with the unit.
    number: (results, pre-trainings that differ in their seed) -> a value for
      each of their runs; None while one is missing.
    nodes: pre-training -> the runs that it is measured on.
    digits: number of digits after the decimal point.
    curves: whether it needs metrics from during the pre-training.
    inside: the kind of a number from weights, see `inside`; '' for others.
    read: returns such a number from a work directory.
    in_miniature: whether other scales than the paper's have it.
  """

  name: str
  number: Callable[[Results, Sequence[Pretraining]], Number | None] = (
    dataclasses.field(compare=False)
  )
  nodes: Callable[[Pretraining], Sequence[Node]] = dataclasses.field(
    default=lambda start: (start,), compare=False
  )
  digits: int = 2
  curves: bool = False
  inside: str = ''
  read: Callable[[str], float] | None = dataclasses.field(
    default=None, compare=False
  )
  in_miniature: bool = True

  def __call__(self, start: Pretraining) -> 'Mean':
    """Returns the mean over pre-trainings that differ in their seed."""
    return Mean(self, start)

  def by_start(
    self, results: Results, starts: Sequence[Pretraining]
  ) -> Number | None:
    """Returns a value for each pre-training: the mean over its runs.

    Fine-tuning runs of one pre-training share what it learnt, so they are not
    independent samples of what another pre-training would give. Claims are
    tested on these means; tables show all values.
    """
    found = [self.number(results, [start]) for start in starts]
    if not found or None in found:
      return None
    return Number(
      tuple(number.mean for number in found),
      tuple(' + '.join(number.runs) for number in found),
    )


def of_run(name: str, metric: str, scale: float = 100.0) -> Measure:
  """Returns one of the last metrics of a pre-training, times `scale`."""
  return Measure(
    name, lambda results, starts: results.number(starts, metric, scale=scale)
  )


# Five-shot accuracy at the end of pre-training.
FIVE_SHOT = of_run('5-shot accuracy on ImageNet in percent', FEW_SHOT)
AVERAGE_FIVE_SHOT = Measure(
  '5-shot accuracy on average over data sets in percent',
  lambda results, starts: results.average_few_shot(starts),
)
# At the step that validates best (4.3).
EARLY_STOPPED = Measure(
  '5-shot accuracy on ImageNet at the best step, in percent',
  lambda results, starts: results.early_stopped(starts, FEW_SHOT),
  curves=True,
)


def difference(
  name: str, one: Measure, other: Measure, factor: float = 1.0
) -> Measure:
  """Returns a measure minus, run by run, `factor` times another."""

  def number(results: Results, starts: Sequence[Pretraining]) -> Number | None:
    first, second = (m.number(results, starts) for m in (one, other))
    if first is None or second is None:
      return None
    pairs = zip(first.values, second.values, strict=True)
    return Number(tuple(a - factor * b for a, b in pairs), first.runs)

  return Measure(name, number, one.nodes)


def _over(
  name: str,
  nodes: Callable[[Pretraining], Sequence[Node]],
  metric: str = ACCURACY,
  **options: Any,
) -> Measure:
  """Returns the mean of a metric over tasks, in percent.

  Args:
    name: of the measure.
    nodes: pre-training -> the runs on the tasks. In miniature, only tasks with
      a stand-in count.
    metric: of these runs.
    **options: further attributes of `Measure`.
  """

  def number(results: Results, starts: Sequence[Pretraining]) -> Number | None:
    return across(
      [
        results.number([with_start(node, start) for start in starts], metric)
        for node in nodes(starts[0])
        if results.comparable or results.has(node)
      ]
    )

  return Measure(name, number, nodes, **options)


@functools.cache
def tuned(
  *tasks: str,
  resolution: int = 384,
  metric: str = ACCURACY,
  options: tuple[tuple[str, Value], ...] = (),
  label: str = '',
) -> Measure:
  """Returns the test accuracy after fine-tuning on tasks, in percent.

  Args:
    *tasks: the accuracy is the mean over them.
    resolution: of fine-tuning, in pixels.
    metric: of the fine-tuning runs.
    options: see `Transfer`.
    label: see `Transfer`.
  """
  how = (resolution, options, label)
  where = ', '.join(tasks)
  if tasks == numbers.AVERAGE5:
    where = 'five tasks (Average-5)'
  size = '' if resolution == 384 else f' at {resolution} px'
  kind = '' if metric == ACCURACY else f' ({metric})'
  kind += f', {label},' if label else ''
  return _over(
    f'fine-tuned accuracy on {where}{size}{kind} in percent',
    lambda start: [Transfer(start, task, *how) for task in tasks],
    metric,
    in_miniature=metric == ACCURACY,
  )


AVERAGE5 = tuned(*numbers.AVERAGE5)


@functools.cache
def vtab(group: str = 'mean') -> Measure:
  """Returns the mean test accuracy over tasks of VTAB, in percent.

  Args:
    group: see `tasks.titles`. In miniature, only tasks with a stand-in count.
  """
  which = 'all tasks' if group == 'mean' else f'{group} tasks'

  return _over(
    f'accuracy on {which} of VTAB in percent',
    lambda start: vtab_nodes(start, group),
  )


def inside(
  kind: str, name: str, digits: int, read: Callable[[str], float]
) -> Measure:
  """Returns a number that is read from a pre-training's weights.

  Args:
    kind: its name where numbers are kept.
    name: with its unit.
    digits: after the decimal point.
    read: returns it from a work directory.
  """

  def number(results: Results, starts: Sequence[Pretraining]) -> Number | None:
    found = [results.weights.get(start.name, {}).get(kind) for start in starts]
    if None in found:
      return None
    return Number(tuple(found), tuple(start.name for start in starts))

  return Measure(name, number, digits=digits, inside=kind, read=read)


# Sums of means. ---------------------------------------------------------------


class Sum:
  """A weighted sum of means, from (weight, mean), each mean once."""

  def __init__(self, terms: Sequence[tuple[float, 'Mean']]):
    self.terms = terms

  def __add__(self, other: 'Sum') -> 'Sum':
    weights: dict[Mean, float] = {}
    for weight, mean in (*self.terms, *other.terms):
      weights[mean] = weights.get(mean, 0.0) + weight
    return Sum([(weight, mean) for mean, weight in weights.items()])

  def __mul__(self, factor: float) -> 'Sum':
    return Sum([(factor * weight, mean) for weight, mean in self.terms])

  __rmul__ = __mul__

  def __sub__(self, other: 'Sum') -> 'Sum':
    return self + -1.0 * other


@dataclasses.dataclass(frozen=True)
class Mean(Sum):
  """The mean of a measure over pre-trainings that differ in their seed.

  Attributes:
    measure: gives a number for each pre-training.
    start: the first of the pre-trainings.
  """

  measure: Measure
  start: Pretraining

  @property
  def terms(self) -> Sequence[tuple[float, 'Mean']]:
    return [(1.0, self)]

  def number(self, results: Results) -> Number | None:
    """Returns a value for each run, of all seeds; None while one is missing."""
    return self.measure.number(results, results.seeds(self.start))

  def by_start(self, results: Results) -> Number | None:
    """Returns a value for each pre-training; see `Measure.by_start`."""
    return self.measure.by_start(results, results.seeds(self.start))

  def expected(self, results: Results) -> bool:
    """Whether there are runs for it at this scale."""
    if not (results.comparable or self.measure.in_miniature):
      return False
    return any(map(results.has, self.measure.nodes(self.start)))


def average(sums: Sequence[Sum]) -> Sum:
  """Returns the mean of sums."""
  first, *rest = sums
  return (1 / len(sums)) * sum(rest, start=first)


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement of the paper as tests on runs.

  Attributes:
    key: a short name that is unique within its item, such as `adam`.
    statement: the paper's statement in our words, with its section.
    contrasts: what a sum is, such as `lead of ViT-L/16 over ViT-B/16`, -> the
      sum. All must be above 0.
    about: sentences on the choice of the tests, if the paper leaves a choice.
    more: returns a further sentence for the evidence, from a function that
      tests any sum; it returns None while a run is missing.
    not_in_miniature: why the miniature cannot show this; it is then not asked
      there. '' if it can.
  """

  key: str
  statement: str
  contrasts: Mapping[str, Sum]
  about: str = ''
  more: Callable[[Callable], str] | None = None
  not_in_miniature: str = ''

  def means(self) -> list[Mean]:
    """Returns the means of all contrasts, each once."""
    found = {
      mean: None
      for sum_ in self.contrasts.values()
      for weight, mean in sum_.terms
      if weight
    }
    return [*found]


# Of models that are compared after 400 steps or fewer.
PLATEAU = (
  'After 400 steps, which stand for 7 epochs of JFT-300M, larger ViTs are in'
  ' the middle of a plateau, and seeds differ by up to 30 points. So a'
  ' miniature cannot show this, neither for the paper nor against it.'
)


def not_in_miniature(reason: str, claims: Sequence[Claim]) -> list[Claim]:
  """Returns claims that a miniature does not ask, see `Claim`."""
  return [dataclasses.replace(c, not_in_miniature=reason) for c in claims]
