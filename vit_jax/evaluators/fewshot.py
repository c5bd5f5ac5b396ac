"""Few-shot classification of frozen features (arXiv:2010.11929, §4.1).

The evaluation draws a few training images of each class at random, and takes
the representation that the classifier's last layer would get. It maps these
features to {-1, 1}^K by regularised least squares in closed form, and measures
the accuracy on a whole test split. It is cheap enough to follow a pre-training
run.

Like the authors' public code, this standardises features by the mean and
standard deviation of the training images. A constant feature acts as the bias.
It is so large that its regularisation hardly matters. All computation is in
float64 on the host. The singular value decomposition serves any number of
strengths at once, and keeps digits that the product of the features with
themselves would lose.

Axes: `N` images, `D` features, `K` classes.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from absl import logging

from vit_jax import data
from vit_jax.evaluators import frozen
from vit_jax.evaluators.evaluator import OnBatch
from vit_jax.evaluators.frozen import Features, check_finite
from vit_jax.runtime import distributed

# The constant feature, and a term that keeps standard deviations above 0.
BIAS = 100.0
EPSILON = 1e-5
# Images scored at a time, to bound the memory.
_CHUNK = 8192


class FewShot(frozen.Classifier):
  """Least squares of a few images of each class, drawn at random."""

  def __init__(
    self, shots: Sequence[int], seeds: Sequence[int], l2: Sequence[float]
  ):
    """Prepares the experiments.

    Args:
      shots: numbers of images per class; each number is a separate experiment.
      seeds: seeds of the random draw; accuracies are means over them.
      l2: strengths of the regularisation. Each number of shots uses the
        strength that is best on the selection split.

    Raises:
      ValueError: a sequence is empty or has repeated or out-of-range numbers.
    """
    frozen.check_numbers('shots', shots, 1)
    frozen.check_numbers('seeds', seeds, 0)
    frozen.check_numbers('l2', l2)
    self.shots, self.seeds, self.l2 = tuple(shots), tuple(seeds), tuple(l2)
    # The training images of each seed and class, in drawn order.
    self._drawn: list[list[list[int]]] | None = None

  def choose(self, train: data.View, on_batch: OnBatch) -> list[int]:
    """Returns all images that are drawn for some seed, ascending."""
    if self._drawn is None:
      # One process reads the labels. All processes must call `on_batch` equally
      # often, so with several processes the reading one does not call it.
      alone = jax.process_count() == 1
      self._drawn = distributed.broadcast(
        self._draw(train, on_batch if alone else lambda: None)
        if jax.process_index() == 0
        else None
      )
    return sorted({i for seed in self._drawn for order in seed for i in order})

  def measure(
    self,
    features: Mapping[str, Features],
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_step: OnBatch = lambda: None,
  ) -> dict[str, float]:
    """Returns `{k}shot/accuracy` of each number of shots, after `choose`.

    Also returns `{k}shot/std`, if there are several seeds; and `{k}shot/l2` and
    `{k}shot/selection_accuracy`, if a strength was selected. For the arguments
    and errors see `frozen.Classifier`.
    """
    results = {}
    for shots in self.shots:
      sets = [
        features['train'].picked([i for order in seed for i in order[:shots]])
        for seed in self._drawn
      ]

      def accuracies(use, strengths, sets=sets):  # [seed][strength]
        against = features[use].features, features[use].labels
        for x, labels in sets:
          fitted = fit(x, labels, num_classes, strengths)
          yield [frozen.accuracy(one, *against) for one in fitted]
          on_step()

      strength, name = self.l2[0], f'{shots}shot'
      if len(self.l2) > 1:
        means = np.mean(list(accuracies('selection', self.l2)), axis=0)
        best = frozen.best(self.l2, means, name)
        strength = results[f'{name}/l2'] = float(self.l2[best])
        results[f'{name}/selection_accuracy'] = float(means[best])
      found = [one for (one,) in accuracies('test', [strength])]
      results[f'{name}/accuracy'] = statistics.fmean(found)
      if len(found) > 1:
        results[f'{name}/std'] = statistics.stdev(found)
    return results

  def summary(self, values: Mapping[str, float]) -> str:
    """Returns the accuracies in a few words."""
    return ', '.join(
      f'{shots}-shot {100 * values[f"{shots}shot/accuracy"]:.2f}%'
      for shots in self.shots
    )

  def _draw(self, train: data.View, on_batch: OnBatch) -> list[list[list[int]]]:
    most, info = max(self.shots), train.source.info
    labels = data.read_labels(train, on_batch)
    counts = np.bincount(labels, minlength=info.num_classes)
    few = np.flatnonzero(counts < most)
    if few.size:
      logging.warning(
        '%d of %d classes have fewer images in %r than %d shots, so all their'
        ' images are used; %r has %d.',
        *(few.size, info.num_classes, train.split, most),
        *(info.class_names[few[0]], counts[few[0]]),
      )
    return [
      [order[:most].tolist() for order in draw(labels, info.num_classes, seed)]
      for seed in self.seeds
    ]


@dataclasses.dataclass(frozen=True)
class LeastSquares:
  """A fitted linear classifier.

  Attributes:
    mean: float64 [D], mean of the training images' features.
    scale: float64 [D], their standard deviation + EPSILON.
    weights: float64 [D + 1, K]; the last row is for the constant feature.
    l2: the strength of the regularisation.
  """

  mean: np.ndarray
  scale: np.ndarray
  weights: np.ndarray
  l2: float

  def scores(self, features: np.ndarray) -> np.ndarray:
    """Returns the scores, float64 [N, K], of features [N, D]."""
    return _prepare(features, self.mean, self.scale) @ self.weights

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the class of the highest score, int64 [N]."""
    parts = range(0, len(features), _CHUNK)
    return np.concatenate(
      [self.scores(features[i : i + _CHUNK]).argmax(axis=1) for i in parts]
    )


def fit(
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  l2: Sequence[float],
) -> Iterator[LeastSquares]:
  """Yields the classifier of each strength.

  Minimises |XW - Y|^2 + l2 |W|^2. X is the standardised features and the
  constant feature; Y is 1 for an image's class and -1 for the other classes.

  Args:
    features: [N, D].
    labels: integers [N] in [0, K).
    num_classes: K.
    l2: strengths of the regularisation, above 0.

  Raises:
    ValueError: there are no images, or a feature is not finite.
  """
  if not len(features):
    raise ValueError('there are no images to fit a linear classifier to.')
  check_finite(features)
  features = np.asarray(features, np.float64)
  mean, scale = features.mean(axis=0), features.std(axis=0) + EPSILON
  left, singular, right = np.linalg.svd(
    _prepare(features, mean, scale), full_matrices=False
  )
  # Multiply by the targets without storing them, since [N, K] may be large.
  by_class = np.zeros((num_classes, left.shape[1]))
  np.add.at(by_class, labels, left)
  projected = 2 * by_class.T - left.sum(axis=0)[:, None]  # [rank, K]
  for strength in l2:
    shrunk = singular / (singular**2 + strength)
    weights = right.T @ (shrunk[:, None] * projected)
    yield LeastSquares(mean, scale, weights, float(strength))


def _prepare(
  features: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
  """Standardises, and appends the constant feature: float64 [N, D + 1]."""
  standardised = (np.asarray(features, np.float64) - mean) / scale
  return np.concatenate(
    [standardised, np.full((len(features), 1), BIAS)], axis=1
  )


def draw(labels: np.ndarray, num_classes: int, seed: int) -> list[np.ndarray]:
  """Orders the images of each class at random; k shots use the first k.

  Args:
    labels: integers [N].
    num_classes: K.
    seed: seed of the order.

  Returns:
    For each class the ordered indices of its images.
  """
  labels = np.asarray(labels)
  order = np.argsort(labels, kind='stable')
  ends = np.searchsorted(labels[order], np.arange(1, num_classes))
  return [
    np.random.default_rng((seed, label)).permutation(indices)
    for label, indices in enumerate(np.split(order, ends))
  ]
