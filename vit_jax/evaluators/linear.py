"""Linear classification by regularised least squares, in closed form.

The paper's few-shot protocol (arXiv:2010.11929, §4.1): frozen features are
mapped to {-1, 1}^K. As its authors' public code does it, features are
standardised by the training images' mean and deviation, and a constant feature
stands for the bias, so large that regularising it hardly matters.

All in float64 on the host. The singular value decomposition serves any number
of strengths at once, and keeps the digits that the usual product of the
features with themselves would lose.

Axes: `N` images, `D` features, `K` classes.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

# The constant feature, and what is added to a deviation, which may be 0.
BIAS = 100.0
EPSILON = 1e-5
# Images scored at a time, which bounds the memory.
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Classifier:
  """A fitted linear classifier.

  Attributes:
    mean: float64 [D], of the training images' features.
    scale: float64 [D], their deviation + EPSILON.
    weights: float64 [D + 1, K], the last row of the constant feature.
    l2: the strength it was fitted with.
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
) -> Iterator[Classifier]:
  """Yields the classifier of each strength.

  Minimises |XW - Y|^2 + l2 |W|^2, with X the standardised features and the
  constant one, and Y 1 for an image's class and -1 for the others.

  Args:
    features: [N, D].
    labels: integers [N] in [0, K).
    num_classes: K.
    l2: strengths, above 0.

  Raises:
    ValueError: there are no images, a feature is not finite, or a strength not
      positive.
  """
  if not len(features):
    raise ValueError('there are no images to fit a linear classifier to.')
  finite = np.isfinite(features).all(axis=1)
  if not finite.all():
    raise ValueError(
      f'the features of {np.sum(~finite)} of {len(features)} images are not'
      ' finite: the weights have diverged, or overflow in this dtype.'
    )
  if min(l2) <= 0:
    raise ValueError(f'l2={tuple(l2)} must be positive.')
  features = np.asarray(features, np.float64)
  mean, scale = features.mean(axis=0), features.std(axis=0) + EPSILON
  left, singular, right = np.linalg.svd(
    _prepare(features, mean, scale), full_matrices=False
  )
  # The product with the targets, which are never held: [N, K] may be large.
  by_class = np.zeros((num_classes, left.shape[1]))
  np.add.at(by_class, labels, left)
  projected = 2 * by_class.T - left.sum(axis=0)[:, None]  # [rank, K]
  for strength in l2:
    shrunk = singular / (singular**2 + strength)
    weights = right.T @ (shrunk[:, None] * projected)
    yield Classifier(mean, scale, weights, float(strength))


def _prepare(
  features: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
  """Standardises, and adds the constant feature: float64 [N, D + 1]."""
  standardised = (np.asarray(features, np.float64) - mean) / scale
  return np.concatenate(
    [standardised, np.full((len(features), 1), BIAS)], axis=1
  )


def draw(labels: np.ndarray, num_classes: int, seed: int) -> list[np.ndarray]:
  """Orders the images of each class at random, so that k shots are the first k.

  Args:
    labels: integers [N].
    num_classes: K.
    seed: of the order.

  Returns:
    For each class the indices of its images.
  """
  labels = np.asarray(labels)
  order = np.argsort(labels, kind='stable')
  ends = np.searchsorted(labels[order], np.arange(1, num_classes))
  return [
    np.random.default_rng((seed, label)).permutation(indices)
    for label, indices in enumerate(np.split(order, ends))
  ]
