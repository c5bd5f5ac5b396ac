"""Few-shot classification of frozen features (arXiv:2010.11929, §4.1).

The evaluation draws a few training images of each class at random, and takes
the representation that the classifier's last layer would get. It fits least
squares in closed form (`linear.py`), and measures the accuracy on a whole test
split. It trains no weights of the model, so it is cheap enough to follow a
pre-training run.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax
import numpy as np
from absl import logging

from vit_jax import data
from vit_jax.data import ops
from vit_jax.evaluators import linear
from vit_jax.evaluators.evaluator import State
from vit_jax.evaluators.frozen import Features, OnBatch, Reader
from vit_jax.runtime import distributed


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The experiments of an evaluation.

  Attributes:
    shots: numbers of images per class; each number is a separate experiment.
    seeds: seeds of the random draw; accuracies are means over them.
    l2: strengths of the regularisation. Each number of shots uses the strength
      that is best on the selection split.
  """

  shots: tuple[int, ...]
  seeds: tuple[int, ...]
  l2: tuple[float, ...]


def protocol(
  shots: Sequence[int], seeds: Sequence[int], l2: Sequence[float]
) -> Protocol:
  """Checks the numbers of a protocol, and returns it.

  Raises:
    ValueError: a sequence is empty or has repeated or out-of-range numbers.
  """
  for name, values, least in (
    ('shots', shots, 1),
    ('seeds', seeds, 0),
    ('l2', l2, None),
  ):
    if not values or len(set(values)) < len(values):
      raise ValueError(
        f'{name}={tuple(values)} must be different numbers, at least one.'
      )
    if least is not None and min(values) < least:
      raise ValueError(f'{name}={tuple(values)} must be {least} or more.')
    if least is None and not all(0 < v < math.inf for v in values):
      raise ValueError(f'{name}={tuple(values)} must be positive.')
  return Protocol(tuple(shots), tuple(seeds), tuple(map(float, l2)))


class FewShot:
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
    name: str = 'few_shot',
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      train: the view from which training images are drawn.
      test: the view on which the accuracy is measured.
      selection: the view on which several strengths are compared.
      preprocess: deterministic ops, for all three views.
      model: see `models.build`; its `pre_logits` are the features.
      mesh: the devices to use.
      protocol: the experiments.
      batch_size: global batch size.
      reading: further arguments of `pipeline.eval_batches`.
      name: name of the evaluation, for errors of `run`.

    Raises:
      ValueError: there are several strengths but no selection view, two views
        share images, or images have several labels.
    """
    self._views = {'train': train, 'test': test}
    if len(protocol.l2) > 1:
      if selection is None:
        raise ValueError(
          f'l2={protocol.l2} are several strengths, and the test split must not'
          ' choose among them. Set selection_split, or a single strength.'
        )
      self._views['selection'] = selection
    self._reader = Reader(
      self._views,
      preprocess,
      model,
      mesh,
      batch_size=batch_size,
      reading=reading,
      name=name,
    )
    self._name = name
    self._protocol = protocol
    self._num_classes = self._reader.num_classes
    self.num_examples = len(test)
    self.data = self._views
    self._drawn: list[list[list[int]]] | None = None

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields `{k}shot/accuracy` for each number of shots.

    Also yields `{k}shot/std`, if there are several seeds; `{k}shot/l2` and
    `{k}shot/selection_accuracy`, if a strength was selected; and at the end
    `count`, the number of test images, and `excluded`, the number of unreadable
    images, if there are any.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch, and every fit.

    Raises:
      ValueError: a feature is not finite, or a split has no readable image.
    """
    if self._drawn is None:
      # One process reads the labels. All processes must call `on_batch` equally
      # often, so with several processes the reading one does not call it.
      alone = jax.process_count() == 1
      self._drawn = distributed.broadcast(
        self._draw(on_batch if alone else lambda: None)
        if jax.process_index() == 0
        else None
      )
    drawn = self._drawn
    chosen = sorted({i for seed in drawn for order in seed for i in order})
    views = self._views | {'train': data.Picked(self._views['train'], chosen)}
    features = {
      name: self._reader.read(view, state, on_batch)
      for name, view in views.items()
    }
    place = {index: row for row, index in enumerate(chosen)}
    results = {}
    for shots in self._protocol.shots:
      sets = [
        features['train'].picked(
          [place[i] for order in seed for i in order[:shots]]
        )
        for seed in drawn
      ]
      results |= self._experiment(shots, sets, features, on_batch)
    # Processes may round differently, but must agree on the best result.
    results = distributed.broadcast(results)
    yield from results.items()
    yield from self._reader.counts(features, views)

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    parts = [
      f'{shots}-shot {100 * values[f"{shots}shot/accuracy"]:.2f}%'
      for shots in self._protocol.shots
    ]
    return f'{", ".join(parts)} on {values["count"]:.0f} examples'

  def _draw(self, on_batch: OnBatch) -> list[list[list[int]]]:
    """Returns the training images of each seed and class, in drawn order."""
    view, most = self._views['train'], max(self._protocol.shots)
    labels = data.read_labels(view, on_batch)
    counts = np.bincount(labels, minlength=self._num_classes)
    few = np.flatnonzero(counts < most)
    if few.size:
      logging.warning(
        'evals.%s: %d of %d classes have fewer images in %r than %d shots, so'
        ' all their images are used; %r has %d.',
        *(self._name, few.size, self._num_classes, view.split, most),
        *(view.source.info.class_names[few[0]], counts[few[0]]),
      )
    return [
      [
        order[:most].tolist()
        for order in linear.draw(labels, self._num_classes, seed)
      ]
      for seed in self._protocol.seeds
    ]

  def _experiment(
    self,
    shots: int,
    sets: list[tuple[np.ndarray, np.ndarray]],
    features: dict[str, Features],
    on_batch: OnBatch,
  ) -> dict[str, float]:
    """Fits one number of shots; `sets` are the training images of each seed."""
    results = {}

    def accuracies(name, strengths):  # [seed][strength]
      found = []
      for x, labels in sets:
        fitted = linear.fit(x, labels, self._num_classes, strengths)
        try:
          found.append([_accuracy(one, features[name]) for one in fitted])
        except ValueError as error:
          raise ValueError(f'evals.{self._name}: {error}') from error
        on_batch()
      return found

    strengths = self._protocol.l2
    if len(strengths) > 1:
      means = np.mean(accuracies('selection', strengths), axis=0)
      for strength, mean in zip(strengths, means, strict=True):
        logging.info(
          '%d-shot, l2=%g: %.2f%% on %r',
          *(shots, strength, 100 * mean, self._views['selection'].split),
        )
      # `argmax` takes the first of several equal means.
      best = int(np.argmax(means))
      strengths = strengths[best : best + 1]
      results[f'{shots}shot/l2'] = float(strengths[0])
      results[f'{shots}shot/selection_accuracy'] = float(means[best])
    found = [one for (one,) in accuracies('test', strengths)]
    results[f'{shots}shot/accuracy'] = statistics.fmean(found)
    if len(found) > 1:
      results[f'{shots}shot/std'] = statistics.stdev(found)
    return results


def _accuracy(classifier: linear.Classifier, of: Features) -> float:
  return float(np.mean(classifier.predict(of.features) == of.labels))
