"""Classifies images by the nearest neighbours of their frozen features.

The representation that the classifier's last layer would get, or that of
another layer, is compared with those of all images of a training split. This
trains nothing. Scores of "DINO" (arXiv:2104.14294) are with 20 neighbours, the
cosine, and the weights 'softmax' at the temperature 0.07.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import flax.linen as nn
import jax
import numpy as np

from vit_jax import data
from vit_jax.data import ops
from vit_jax.evaluators import neighbours
from vit_jax.evaluators.evaluator import State
from vit_jax.evaluators.frozen import OnBatch, Reader
from vit_jax.runtime import distributed

WEIGHTS = ('uniform', 'softmax', 'distance')

# Queries whose votes are counted at once.
_VOTES = 4096


def vote(
  found: neighbours.Nearest,
  labels: np.ndarray,
  num_classes: int,
  k: int,
  weights: str,
  temperature: float,
) -> np.ndarray:
  """Returns the class that the k nearest neighbours of each query vote for.

  Of classes with the same votes, the one with the smallest number wins.

  Args:
    found: at least k neighbours of each query.
    labels: the classes of the rows, [N].
    num_classes: number of classes.
    k: how many neighbours vote.
    weights: 'uniform' gives each neighbour one vote. 'softmax' gives it
      exp(cosine / temperature) votes (arXiv:1805.01978, §3.4). 'distance' gives
      it 1 / distance votes; if a distance is 0, only such neighbours vote.
    temperature: see 'softmax'.

  Returns:
    int64 [Q].
  """
  chosen = labels[found.rows[:, :k]]
  distances = found.distances[:, :k]
  if weights == 'softmax':
    # Relative to the nearest, so that none overflows.
    strength = np.exp((distances[:, :1] - distances) / temperature)
  elif weights == 'distance':
    zero = distances == 0
    strength = np.where(
      zero.any(axis=1, keepdims=True),
      zero,
      1 / np.where(zero, 1, distances),
    )
  else:
    strength = np.ones(distances.shape)
  predicted = np.empty(len(chosen), np.int64)
  for start in range(0, len(chosen), _VOTES):
    part = slice(start, start + _VOTES)
    votes = np.zeros((len(chosen[part]), num_classes))
    np.add.at(
      votes, (np.arange(len(votes))[:, None], chosen[part]), strength[part]
    )
    predicted[part] = votes.argmax(axis=1)
  return predicted


@dataclasses.dataclass(frozen=True)
class Protocol:
  """How to classify by nearest neighbours; see `vote`.

  Attributes:
    k: numbers of neighbours, each a separate result.
    metric: one of `neighbours.METRICS`.
    weights: one of WEIGHTS.
    temperature: of 'softmax'.
  """

  k: tuple[int, ...]
  metric: str
  weights: str
  temperature: float

  def __post_init__(self):
    if not self.k or len(set(self.k)) < len(self.k) or min(self.k) < 1:
      raise ValueError(f'k={self.k} must be different numbers, 1 or more.')
    for key, choices in (('metric', neighbours.METRICS), ('weights', WEIGHTS)):
      if getattr(self, key) not in choices:
        raise ValueError(
          f'{key}={getattr(self, key)!r} is unknown; choose one of'
          f' {list(choices)}.'
        )
    if self.weights == 'softmax' and self.metric != 'cosine':
      raise ValueError(
        f"weights='softmax' needs metric='cosine', not {self.metric!r}: choose"
        " weights='uniform' or 'distance'."
      )
    if self.temperature <= 0:
      raise ValueError(f'temperature={self.temperature} must be above 0.')

  def accuracies(
    self,
    blocks: Sequence[np.ndarray],
    labels: np.ndarray,
    queries: np.ndarray,
    expected: np.ndarray,
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_block: Callable[[], None] = lambda: None,
  ) -> dict[str, float]:
    """Returns `{k}nn/accuracy` of each k; see also `neighbours.nearest`.

    Args:
      blocks: the features of labelled images.
      labels: their classes, [N].
      queries: the features of the images to classify.
      expected: their classes, [Q].
      num_classes: number of classes.
      mesh: the devices.
      on_block: called after each block.
    """
    found = neighbours.nearest(
      blocks, queries, max(self.k), self.metric, mesh, on_block
    )
    return {
      f'{k}nn/accuracy': float(
        np.mean(
          vote(found, labels, num_classes, k, self.weights, self.temperature)
          == expected
        )
      )
      for k in self.k
    }


class NearestNeighbours:
  """Evaluates a model's features; see the docstring of the module."""

  def __init__(
    self,
    train: data.View,
    test: data.View,
    preprocess: ops.Preprocess,
    model: nn.Module,
    mesh: jax.sharding.Mesh,
    protocol: Protocol,
    *,
    batch_size: int,
    reading: dict,
    name: str,
    layer: str,
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      train: the labelled images.
      test: the images to classify.
      preprocess: deterministic ops, for both views.
      model: see `models.build`.
      mesh: the devices to use.
      protocol: how to classify.
      batch_size: global batch size.
      reading: further arguments of `pipeline.eval_batches`.
      name: name of the evaluation, for messages.
      layer: the layer of the features, see `layers.names`.

    Raises:
      ValueError: there are fewer training images than neighbours, or see
        `frozen.Reader`.
    """
    self._reader = Reader(
      {'train': train, 'test': test},
      preprocess,
      model,
      mesh,
      batch_size=batch_size,
      reading=reading,
      name=name,
      layer=layer,
    )
    if len(train) < max(protocol.k):
      raise ValueError(
        f'k={protocol.k} needs {max(protocol.k)} training images, but'
        f' {train.split!r} has {len(train)}.'
      )
    self._protocol = protocol
    self.num_examples = len(test)
    self.data = self._reader.views

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields `{k}nn/accuracy` for each number of neighbours.

    Also yields `count`, the number of test images, and `excluded`, the number
    of unreadable images, if there are any.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch, and every block of training images.

    Raises:
      ValueError: a feature is not finite, or too few images are readable.
    """
    reader = self._reader
    found = reader.read_all(state, on_batch)
    try:
      results = self._protocol.accuracies(
        [found['train'].features],
        found['train'].labels,
        found['test'].features,
        found['test'].labels,
        reader.num_classes,
        reader.mesh,
        on_batch,
      )
    except ValueError as error:
      raise ValueError(f'evals.{reader.name}: {error}') from error
    # Processes may round differently, but must agree on the best result.
    yield from distributed.broadcast(results).items()
    yield from reader.counts(found)

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    parts = [
      f'{k} neighbours {100 * values[f"{k}nn/accuracy"]:.2f}%'
      for k in self._protocol.k
    ]
    return f'{", ".join(parts)} on {values["count"]:.0f} examples'
