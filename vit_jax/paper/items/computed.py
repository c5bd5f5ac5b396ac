"""Our numbers that follow from the models alone, without any run."""

import dataclasses
from collections.abc import Callable, Mapping

from vit_jax.paper import cost, numbers
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results
from vit_jax.plan import analysis

# A row of Table 2, and one that we add to it from the text of Section 4.2.
CORE_DAYS = 'TPUv3-core-days'
DAYS = 'Days on 8 TPUv3 cores'


@dataclasses.dataclass(frozen=True)
class Computed:
  """How the cells of a row or column are computed.

  Attributes:
    of: (results, row, column) -> number; None if unknown.
    note: where the numbers are from; shown if there are any.
    printed: the paper's number if it is in the text; shown beside ours.
  """

  of: Callable[[Results, str, str], Number | None]
  note: str
  printed: Value | None = None


def core_days(starts: Mapping[str, Pretraining]) -> Computed:
  """Returns how to look up the core-days of `starts`, by row or column."""

  def of(results: Results, row: str, column: str) -> Number | None:
    start = starts.get(row) or starts.get(column)
    return results.core_days(start) if start else None

  return Computed(
    of,
    'Our core-days are not measured: they are estimates of vit_jax.plan for the'
    ' steps alone, without evaluations, checkpoints and restarts.'
    f' {analysis.RESTS_ON}',
  )


def days_on_8_cores(column: str, start: Pretraining) -> Computed:
  """Returns how to compute the days of a pre-training on 8 cores of TPUv3.

  Args:
    column: of Table 2.
    start: its pre-training.
  """

  def of(results: Results, row: str, shown: str) -> Number | None:
    del row
    found = results.core_days(start)
    if found is None or shown != column:
      return None
    return Number(tuple(days / 8 for days in found.values), found.runs)

  return Computed(
    of,
    f'{DAYS} are our core-days divided by 8, also if the plan is of a larger'
    " slice. The paper's are from the text of Section 4.2.",
    numbers.DAYS_ON_8_CORES,
  )


def exaflops(starts: Mapping[str, Pretraining]) -> Computed:
  """Returns how to count the exaFLOPs of each row's pre-training."""

  def of(results: Results, row: str, column: str) -> Number | None:
    del column
    # `cost.exaflops` counts the paper's models; a miniature has others.
    if not results.comparable:
      return None
    start = starts[row]
    return Number((cost.exaflops(start),), (f'counted: {start.name}',))

  return Computed(
    of,
    'Our exaFLOPs are not measured: they are counted in the forward pass of our'
    ' models (vit_jax.accounting), times 3 for forward and backward pass, times'
    ' images and epochs.',
  )
