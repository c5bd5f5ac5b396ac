"""What claims measure: a number for each pre-training.

Fine-tuning runs of one pre-training share what it learnt, so they are not
independent samples of what another pre-training would give: the number is the
mean over them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from vit_jax.paper import averages
from vit_jax.paper.numbers import means
from vit_jax.paper.report import Number
from vit_jax.paper.runs import Node, Pretraining, Results, Transfer

# In percentage points: half of one of 1,000 test images.
_FLOOR = 0.05


class Measure(Protocol):
  """A number of a pre-training, and the runs that give it.

  Attributes:
    name: unique among all measures, and readable.
    digits: number of digits after the decimal point.
    curves: whether it needs metrics from during the pre-training.
    floor: the least standard deviation over pre-trainings that is believed:
      near 0% or 100%, runs may agree by chance.
  """

  name: str
  digits: int
  curves: bool
  floor: float

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    """Returns the runs that it is measured on."""
    ...

  def value(self, results: Results, start: Pretraining) -> float | None:
    """Returns the number; None while a run is missing."""
    ...


def _mean(number: Number | None) -> float | None:
  return None if number is None else number.mean


@dataclasses.dataclass(frozen=True)
class FewShot:
  """Five-shot accuracy at the end of pre-training, in percent.

  Attributes:
    average: whether over all data sets of the run's config instead of on
      ImageNet alone.
  """

  average: bool = False
  digits = 2
  curves = False
  floor = _FLOOR

  @property
  def name(self) -> str:
    where = 'on average over data sets' if self.average else 'on ImageNet'
    return f'5-shot accuracy {where} in percent'

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return (start,)

  def value(self, results: Results, start: Pretraining) -> float | None:
    if self.average:
      return _mean(results.average_few_shot([start]))
    return _mean(results.few_shot([start]))


@dataclasses.dataclass(frozen=True)
class EarlyStopped:
  """Five-shot accuracy on ImageNet at the step that validates best (4.3)."""

  name = '5-shot accuracy on ImageNet at the best step, in percent'
  digits = 2
  curves = True
  floor = _FLOOR

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return (start,)

  def value(self, results: Results, start: Pretraining) -> float | None:
    return _mean(results.early_stopped([start], averages.FEW_SHOT))


@dataclasses.dataclass(frozen=True)
class Tuned:
  """Test accuracy after fine-tuning on tasks, in percent.

  Attributes:
    tasks: the accuracy is the mean over them.
    resolution: of fine-tuning, in pixels.
  """

  tasks: tuple[str, ...]
  resolution: int = 384
  digits = 2
  curves = False
  floor = _FLOOR

  @property
  def name(self) -> str:
    tasks = ', '.join(self.tasks)
    if self.tasks == means.AVERAGE5:
      tasks = 'five tasks (Average-5)'
    size = '' if self.resolution == 384 else f' at {self.resolution} px'
    return f'fine-tuned accuracy on {tasks}{size} in percent'

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return tuple(Transfer(start, task, self.resolution) for task in self.tasks)

  def value(self, results: Results, start: Pretraining) -> float | None:
    return _average(results, self.nodes(start))


AVERAGE5 = Tuned(means.AVERAGE5)


@dataclasses.dataclass(frozen=True)
class Vtab:
  """Mean test accuracy over tasks of VTAB, in percent.

  Attributes:
    group: a key of `means.VTAB_GROUPS`, or 'mean' over all tasks. In
      miniature, only tasks with a stand-in count.
  """

  group: str
  digits = 2
  curves = False
  floor = _FLOOR

  @property
  def name(self) -> str:
    which = 'all tasks' if self.group == 'mean' else f'{self.group} tasks'
    return f'accuracy on {which} of VTAB in percent'

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return tuple(
      node
      for node in averages.vtab_nodes(start)
      if self.group == 'mean' or node.task in means.VTAB_GROUPS[self.group]
    )

  def value(self, results: Results, start: Pretraining) -> float | None:
    return _mean(averages.vtab(results, start)[self.group])


@dataclasses.dataclass(frozen=True)
class Predicted:
  """Accuracy of masked patch prediction, beyond a multiple of a constant's.

  The unit is a percent of the corrupted patches of held-out images.

  Attributes:
    margin: this multiple of the accuracy of always the most frequent colour is
      subtracted.
  """

  margin: float
  digits = 2
  curves = False
  floor = _FLOOR

  @property
  def name(self) -> str:
    return (
      'right predictions in percent of the corrupted patches, minus'
      f' {self.margin:g} times those of the most frequent colour'
    )

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return (start,)

  def value(self, results: Results, start: Pretraining) -> float | None:
    accuracy, baseline = (
      results.number([start], f'validation/{metric}')
      for metric in ('accuracy', 'baseline_accuracy')
    )
    if accuracy is None or baseline is None:
      return None
    return accuracy.mean - self.margin * baseline.mean


@dataclasses.dataclass(frozen=True)
class Inside:
  """A number that is read from a pre-training's weights.

  Attributes:
    kind: a key of `pictures.measuring.KINDS`.
  """

  kind: str
  curves = False
  floor = 0.0

  @property
  def name(self) -> str:
    return KINDS_INSIDE[self.kind][0]

  @property
  def digits(self) -> int:
    return KINDS_INSIDE[self.kind][1]

  def nodes(self, start: Pretraining) -> tuple[Node, ...]:
    return (start,)

  def value(self, results: Results, start: Pretraining) -> float | None:
    return results.inside(start).get(self.kind)


# Kind of `Inside` -> its name with its unit, and its digits.
KINDS_INSIDE = {
  'distance_by_depth': (
    "Kendall's rank correlation of a head's block and attention distance,"
    ' beyond that of untrained models',
    2,
  ),
  'far_head': (
    'distance of the farthest head of the first block, minus that of uniform'
    ' attention to the nearest half, in px',
    1,
  ),
  'near_head': (
    'distance of uniform attention to the nearest half, minus that of the'
    ' nearest head of the first block, in px',
    1,
  ),
  'early_distance': (
    'mean attention distance in the first quarter of the blocks, in px',
    1,
  ),
  'position_locality': (
    "rank correlation of positions' similarity and nearness",
    2,
  ),
  'position_lines': (
    'similarity of positions in the same row or column, beyond that of others'
    ' at exactly their distance',
    3,
  ),
  'position_waves': (
    "share of the position embeddings' variance in slow waves, beyond that of"
    ' shuffled positions',
    3,
  ),
  'filter_share': (
    "share of the filters' variance in few components, beyond that of random"
    ' filters',
    3,
  ),
  'shift_eighth': (
    '5-shot answers that change as the image shifts by an eighth of a patch, in'
    ' percent',
    2,
  ),
  'shift_quarter': (
    '5-shot answers that change as the image shifts by a quarter of a patch, in'
    ' percent',
    2,
  ),
  'shift_accuracy': ('5-shot accuracy without a shift, in percent', 2),
  'shift_loss': (
    '5-shot accuracy lost by a shift of a quarter of a patch, in percentage'
    ' points',
    2,
  ),
}


def _average(results: Results, nodes: Sequence[Node]) -> float | None:
  """Returns the mean accuracy over tasks, each a mean over its runs."""
  found = [results.number([node], averages.ACCURACY) for node in nodes]
  if not found or None in found:
    return None
  return sum(number.mean for number in found) / len(found)
