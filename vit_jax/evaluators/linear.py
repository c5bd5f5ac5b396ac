"""Linear classification by regularised least squares, in closed form.

The paper's few-shot protocol (arXiv:2010.11929, §4.1) maps frozen features to
{-1, 1}^K. Like the authors' public code, this standardises features by the mean
and standard deviation of the training images. A constant feature acts as the
bias. It is so large that its regularisation hardly matters.

All computation is in float64 on the host. The singular value decomposition
serves any number of strengths at once, and keeps digits that the product of the
features with themselves would lose.

Axes: `N` images, `D` features, `K` classes.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

# The constant feature, and a term that keeps standard deviations above 0.
BIAS = 100.0
EPSILON = 1e-5
# Images scored at a time, to bound the memory.
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Classifier:
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
) -> Iterator[Classifier]:
  """Yields the classifier of each strength.

  Minimises |XW - Y|^2 + l2 |W|^2. X is the standardised features and the
  constant feature; Y is 1 for an image's class and -1 for the other classes.

  Args:
    features: [N, D].
    labels: integers [N] in [0, K).
    num_classes: K.
    l2: strengths of the regularisation, above 0.

  Raises:
    ValueError: there are no images, a feature is not finite, or a strength is
      not positive.
  """
  if not len(features):
    raise ValueError('there are no images to fit a linear classifier to.')
  finite = np.isfinite(features).all(axis=1)
  if not finite.all():
    raise ValueError(
      f'the features of {np.sum(~finite)} of {len(features)} images are not'
      ' finite, because the weights have diverged or the features overflow.'
      ' Evaluate an earlier checkpoint, or use float32.'
    )
  if min(l2) <= 0:
    raise ValueError(f'l2={tuple(l2)} must be positive.')
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
    yield Classifier(mean, scale, weights, float(strength))


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
