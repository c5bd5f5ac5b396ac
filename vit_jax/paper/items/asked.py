"""What a cell of a table asks for: nodes, and a metric of their runs."""

import dataclasses

from vit_jax.paper import averages
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Pretraining, Results, Transfer

_REAL = 'real/accuracy'


@dataclasses.dataclass(frozen=True)
class Asked:
  """The runs and the metric that a cell is the mean of.

  Attributes:
    node: fine-tuning, of the first of the pre-trainings that differ only in
      their seed.
    metric: name of a metric of its runs, which is a fraction.
  """

  node: Transfer
  metric: str = averages.ACCURACY

  def number(self, results: Results) -> Number | None:
    """Returns the mean in percent; None while a run is missing."""
    return results.number(self._nodes(results), self.metric)

  def expected(self, results: Results) -> bool:
    """Whether the cell is measured at this scale."""
    if self.metric == _REAL and not results.comparable:
      return False
    return all(map(results.has, self._nodes(results)))

  def _nodes(self, results: Results) -> list[Transfer]:
    return [
      dataclasses.replace(self.node, pretraining=start)
      for start in results.seeds(self.node.pretraining)
    ]


def of(label: str, start: Pretraining, resolution: int = 384) -> Asked:
  """Returns what a table reports on a model under the name of a data set.

  Args:
    label: a task; or ImageNet ReaL, another test of the model for ImageNet.
    start: the pre-training.
    resolution: of fine-tuning, in pixels.
  """
  real = label == values.REAL
  task = values.IMAGENET if real else label
  return Asked(
    Transfer(start, task, resolution), _REAL if real else averages.ACCURACY
  )


def real_notes(results: Results) -> list[str]:
  """Returns a note on why ImageNet ReaL is empty in miniature."""
  if results.comparable:
    return []
  return [
    "ImageNet ReaL has other labels for ImageNet's images; the miniature has no"
    ' stand-in for it.'
  ]
