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

import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from vit_jax import data
from vit_jax.evaluators import frozen
from vit_jax.evaluators.evaluator import OnBatch
from vit_jax.evaluators.frozen import Features
from vit_jax.runtime import distributed

# The constant feature, and a term that keeps standard deviations above 0.
BIAS = 100.0
EPSILON = 1e-5


class FewShot(frozen.FrozenFeatures):
  """Least squares of a few images of each class, drawn at random."""

  # The training images of each seed and class, in drawn order.
  _drawn: list[list[list[int]]] | None = None

  def views(self, on_batch: OnBatch) -> Mapping[str, data.View]:
    """Returns the views; of the training images those drawn for some seed."""
    if self._drawn is None:
      # One process reads the labels. All processes must call `on_batch` equally
      # often, so with several processes the reading one does not call it.
      alone = jax.process_count() == 1
      self._drawn = distributed.broadcast(
        self._draw(on_batch if alone else lambda: None)
        if jax.process_index() == 0
        else None
      )
    picked = data.Picked(self.data['train'], self._all_drawn())
    return {**self.data, 'train': picked}

  def _all_drawn(self) -> list[int]:
    return sorted({i for seed in self._drawn for order in seed for i in order})

  def measure(
    self, features: Mapping[str, Features], on_step: OnBatch
  ) -> dict[str, float]:
    """Returns `{k}shot/accuracy` of each number of shots, after `views`.

    Also returns `{k}shot/std`, if there are several seeds; and `{k}shot/l2` and
    `{k}shot/selection_accuracy`, if a strength was selected. For the arguments
    and errors see `FrozenFeatures`.
    """
    results, train = {}, features['train']
    # The place in the split of each image whose features are known.
    places = np.array(self._all_drawn())[train.rows]

    def accuracies(use, shots, l2):  # [seed][strength]
      for seed in self._drawn:
        chosen = [i for order in seed for i in order[:shots]]
        rows = np.isin(places, chosen)
        few, found = (train.features[rows], train.labels[rows]), []
        # One classifier at a time: with many classes, it is large.
        for one in fit(*few, self.num_classes, l2):
          found.append(one.accuracy(features[use]))
          on_step()
        yield found

    for shots in self.section.shots:
      name, l2 = f'{shots}shot', self.section.l2
      if len(l2) > 1:
        means = np.mean(list(accuracies('selection', shots, l2)), axis=0)
        best = frozen.best(l2, means, name)
        results[f'{name}/l2'] = float(l2[best])
        results[f'{name}/selection_accuracy'] = float(means[best])
        l2 = l2[best : best + 1]
      test = [found for (found,) in accuracies('test', shots, l2)]
      results[f'{name}/accuracy'] = statistics.fmean(test)
      if len(test) > 1:
        results[f'{name}/std'] = statistics.stdev(test)
    return results

  def _draw(self, on_batch: OnBatch) -> list[list[list[int]]]:
    most, classes = max(self.section.shots), self.num_classes
    labels = data.read_labels(self.data['train'], on_batch)
    return [
      [order[:most].tolist() for order in draw(labels, classes, seed)]
      for seed in self.section.seeds
    ]


def fit(
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  l2: Sequence[float],
) -> Iterator[frozen.Linear]:
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
  frozen.check_finite(features)
  features = np.asarray(features, np.float64)
  mean, scale = features.mean(axis=0), features.std(axis=0) + EPSILON
  standardised = (features - mean) / scale
  constant = np.full((len(features), 1), BIAS)
  left, singular, right = np.linalg.svd(
    np.concatenate([standardised, constant], axis=1), full_matrices=False
  )
  # Multiply by the targets without storing them, since [N, K] may be large.
  by_class = np.zeros((num_classes, left.shape[1]))
  np.add.at(by_class, labels, left)
  projected = 2 * by_class.T - left.sum(axis=0)[:, None]  # [rank, K]
  for strength in l2:
    shrunk = singular / (singular**2 + strength)
    weights = right.T @ (shrunk[:, None] * projected)  # [D + 1, K]
    yield frozen.Linear(mean, scale, weights[:-1], BIAS * weights[-1])


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
