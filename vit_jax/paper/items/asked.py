"""What a cell of a table asks of the runs: nodes, and a metric of theirs."""

import dataclasses

from vit_jax.paper import averages
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Node, Pretraining, Results, Transfer

_REAL = 'real/accuracy'


@dataclasses.dataclass(frozen=True)
class Asked:
  """What a cell is the mean of.

  Attributes:
    nodes: which may differ in their seed.
    metric: of their runs; a fraction.
  """

  nodes: tuple[Node, ...]
  metric: str = averages.ACCURACY

  def number(self, results: Results) -> Number | None:
    """In percent; None while a run is missing."""
    return results.number(self.nodes, self.metric)

  def expected(self, results: Results) -> bool:
    """Whether it is measured at this scale."""
    if self.metric == _REAL and not results.comparable:
      return False
    return all(map(results.has, self.nodes))


def of(label: str, start: Pretraining, resolution: int = 384) -> Asked:
  """What a table reports of a model under the name of a data set.

  Args:
    label: a task; or ImageNet ReaL, another test of the model for ImageNet.
    start: the pre-training.
    resolution: of fine-tuning, in pixels.
  """
  real = label == values.REAL
  task = values.IMAGENET if real else label
  return Asked(
    (Transfer(start, task, resolution),), _REAL if real else averages.ACCURACY
  )


def real_notes(results: Results) -> list[str]:
  """Says why ImageNet ReaL is empty in miniature."""
  if results.comparable:
    return []
  return [
    "ImageNet ReaL is other labels of ImageNet's images; in miniature nothing"
    ' stands for them.'
  ]
