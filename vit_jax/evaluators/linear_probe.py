"""Evaluates frozen features by a linear classifier of all training images.

The classifier is a logistic regression (`logistic.py`). Unlike the few-shot
protocol, it sees the whole training split. No weight of the model changes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn
import jax
import numpy as np
from absl import logging

from vit_jax import data
from vit_jax.data import ops
from vit_jax.evaluators import logistic
from vit_jax.evaluators.evaluator import State
from vit_jax.evaluators.frozen import OnBatch, Reader
from vit_jax.runtime import distributed

# Features [N, D] and labels [N].
Pair = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Protocol:
  """How to fit the classifier.

  Attributes:
    l2: strengths of the regularisation, see `logistic.fit`. The best one on the
      selection split is used.
    max_steps: the most steps of the optimisation.
  """

  l2: tuple[float, ...]
  max_steps: int

  def __post_init__(self):
    if (
      not self.l2
      or len(set(self.l2)) < len(self.l2)
      or not all(0 < v < math.inf for v in self.l2)
    ):
      raise ValueError(f'l2={self.l2} must be different positive numbers.')
    if self.max_steps < 1:
      raise ValueError(f'max_steps={self.max_steps} must be 1 or more.')

  def check_selection(self, is_there: bool) -> None:
    """Raises ValueError if several strengths lack a selection split."""
    if len(self.l2) > 1 and not is_there:
      raise ValueError(
        f'l2={self.l2} are several strengths, and the test split must not'
        ' choose among them. Set selection_split, or a single strength.'
      )

  def measure(
    self,
    pairs: Mapping[str, Pair],
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_step: Callable[[], None] = lambda: None,
  ) -> dict[str, float]:
    """Fits and measures.

    Args:
      pairs: features and labels of 'train', 'test' and, if there are several
        strengths, 'selection'.
      num_classes: number of classes.
      mesh: the devices.
      on_step: called after every few steps.

    Returns:
      `accuracy` and `train_accuracy`; if a strength was selected, also `l2` and
      `selection_accuracy`.
    """
    best, result = None, {}
    fitted = logistic.fit(
      *pairs['train'],
      num_classes,
      self.l2,
      mesh,
      max_steps=self.max_steps,
      on_step=on_step,
    )
    for one in fitted:
      if len(self.l2) == 1:
        best = one
        continue
      found = _accuracy(one, pairs['selection'])
      logging.info('l2=%g: %.2f%% on the selection split', one.l2, 100 * found)
      # The first of several equal strengths stays.
      if best is None or found > result['selection_accuracy']:
        best, result = one, {'l2': one.l2, 'selection_accuracy': found}
    return {
      'accuracy': _accuracy(best, pairs['test']),
      'train_accuracy': _accuracy(best, pairs['train']),
      **result,
    }


def _accuracy(classifier: logistic.Classifier, pair: Pair) -> float:
  return float(np.mean(classifier.predict(pair[0]) == pair[1]))


class LinearProbe:
  """Evaluates a model's features; see the docstring of the module."""

  def __init__(
    self,
    train: data.View,
    test: data.View,
    selection: data.View | None,
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
      train: the images to fit the classifier to.
      test: the images on which the accuracy is measured.
      selection: the images on which several strengths are compared.
      preprocess: deterministic ops, for all views.
      model: see `models.build`.
      mesh: the devices to use.
      protocol: how to fit.
      batch_size: global batch size.
      reading: further arguments of `pipeline.eval_batches`.
      name: name of the evaluation, for messages.
      layer: the layer of the features, see `layers.names`.

    Raises:
      ValueError: there are several strengths but no selection view, or see
        `frozen.Reader`.
    """
    protocol.check_selection(selection is not None)
    views = {'train': train, 'test': test}
    if len(protocol.l2) > 1:
      views['selection'] = selection
    self._reader = Reader(
      views,
      preprocess,
      model,
      mesh,
      batch_size=batch_size,
      reading=reading,
      name=name,
      layer=layer,
    )
    self._protocol = protocol
    self.num_examples = len(test)
    self.data = views

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields `accuracy` and `train_accuracy`.

    Also yields `l2` and `selection_accuracy`, if a strength was selected;
    `count`, the number of test images; and `excluded`, the number of unreadable
    images, if there are any.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch, and every few steps of the fit.

    Raises:
      ValueError: a feature is not finite, or a split has no readable image.
    """
    reader = self._reader
    found = reader.read_all(state, on_batch)
    pairs = {use: (x.features, x.labels) for use, x in found.items()}
    try:
      results = self._protocol.measure(
        pairs, reader.num_classes, reader.mesh, on_batch
      )
    except ValueError as error:
      raise ValueError(f'evals.{reader.name}: {error}') from error
    # Processes may round differently, but must agree on the best result.
    yield from distributed.broadcast(results).items()
    yield from reader.counts(found)

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    return (
      f'linear probe {100 * values["accuracy"]:.2f}% on'
      f' {values["count"]:.0f} examples'
    )
