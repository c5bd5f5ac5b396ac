"""Nearest neighbours of frozen features, and classification by them.

scikit-learn finds them on the host, in float64. Squared distances are exact up
to 1e-12 of the query's squared length; a Euclidean one's is measured from the
mean of the first block. Of rows at the same distance, the one that comes first
is nearer, unless more than `_SPARE` rows are as far as the last neighbour. The
processes share the queries.

Scores of "DINO" (arXiv:2104.14294) are with 20 neighbours, the cosine, and the
weights 'softmax' at the temperature 0.07.

Axes: `Q` queries, `N` rows to search, `D` features, `K` neighbours.
"""

from collections.abc import Iterable, Mapping

import jax
import ml_collections
import numpy as np

from vit_jax.evaluators import frozen
from vit_jax.evaluators.evaluator import Context, OnBatch
from vit_jax.evaluators.frozen import Features
from vit_jax.runtime import distributed

# More neighbours that are found, to put those at the same distance in order.
_SPARE = 32
# The most rows to search at once, and pairs of a query and a row: a watchdog
# waits for each search.
_ROWS = 65_536
_PAIRS = 2**32
# Squared distances are the same if they differ less than this, relative to the
# query's squared length: what rounding may do.
_SAME = 1e-12


class NearestNeighbours(frozen.FrozenFeatures):
  """Classification by nearest neighbours; see `vote`."""

  def __init__(self, given: Context):
    """Checks the section; raises ValueError as `FrozenFeatures` does."""
    super().__init__(given)
    check(self.section)
    train, most = self.data['train'], max(self.section.k)
    if len(train) < most:
      raise ValueError(
        f'k={most} needs {most} training images, but {train.split!r} has'
        f' {len(train)}.'
      )

  def measure(
    self, features: Mapping[str, Features], on_step: OnBatch
  ) -> dict[str, float]:
    """See `accuracies`."""
    train, test = features['train'], features['test']
    return accuracies(
      [train.features], train.labels, test, self.section, on_step
    )


def check(section: ml_collections.ConfigDict) -> None:
  """Raises ValueError if the weights do not suit the metric."""
  if section.weights == 'softmax' and section.metric != 'cosine':
    raise ValueError(
      f"weights='softmax' needs metric='cosine', not {section.metric!r}: choose"
      " weights='uniform' or 'distance'."
    )


def accuracies(
  blocks: Iterable[np.ndarray],
  labels: np.ndarray,
  test: Features,
  section: ml_collections.ConfigDict,
  on_step: OnBatch = lambda: None,
) -> dict[str, float]:
  """Returns `{k}nn/accuracy` of each k; all processes must call this.

  Args:
    blocks: the training images' features, see `nearest`.
    labels: their classes, [N].
    test: the images to classify.
    section: k, metric, weights and temperature of `config.knn`.
    on_step: see `nearest`.
  """
  # Of more processes than images, some search for what others search for.
  shares = min(jax.process_count(), len(test.labels))
  share = slice(jax.process_index() % shares, None, shares)
  found = nearest(
    blocks, test.features, max(section.k), section.metric, on_step, share
  )
  right = [
    int(
      np.sum(
        vote(*found, labels, k, section.weights, section.temperature)
        == test.labels[share]
      )
    )
    for k in section.k
  ]
  totals = np.sum(distributed.gather(right)[:shares], axis=0)
  return {
    f'{k}nn/accuracy': float(total / len(test.labels))
    for k, total in zip(section.k, totals, strict=True)
  }


def nearest(
  blocks: Iterable[np.ndarray],
  queries: np.ndarray,
  k: int,
  metric: str,
  on_block: OnBatch = lambda: None,
  share: slice = slice(None),
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of queries, the nearest first.

  Args:
    blocks: the rows in blocks [n, D], which are taken one at a time, so that an
      iterable may load them from files.
    queries: [Q, D].
    k: K, the number of neighbours.
    metric: 'cosine' or 'euclidean'.
    on_block: called after each part of a block, equally often for any share.
    share: the queries whose neighbours are found.

  Returns:
    The indices of the rows, int64 [Q, K]; and the distances, float64 [Q, K]: 1
    - cosine, or the Euclidean distances. Q is only the share.

  Raises:
    ValueError: there are fewer than k rows, or a feature is not finite.
  """
  from sklearn import neighbors  # Takes a second.

  frozen.check_finite(queries)
  size = min(_ROWS, max(k + _SPARE, _PAIRS // max(1, len(queries))))
  queries = queries[share]
  squares = np.empty((len(queries), 0))
  rows, start = squares.astype(np.int64), 0
  for block in blocks:
    frozen.check_finite(block)
    if not start and len(block):
      mean = block.mean(axis=0, dtype=np.float64)
      x = _prepared(queries, metric, mean)
      lengths = np.einsum('qd,qd->q', x, x)[:, None]
    for begin in range(0, len(block), size):
      part = _prepared(block[begin : begin + size], metric, mean)
      count = min(k + _SPARE, len(part))
      found = neighbors.NearestNeighbors(n_neighbors=count, algorithm='brute')
      distances, places = found.fit(part).kneighbors(x)
      squares = np.concatenate([squares, distances**2], axis=1)
      rows = np.concatenate([rows, start + places], axis=1)
      steps = np.round(squares / np.maximum(lengths, 1e-30) / _SAME)
      order = np.lexsort((rows, steps), axis=1)[:, : k + _SPARE]
      squares = np.take_along_axis(squares, order, axis=1)
      rows = np.take_along_axis(rows, order, axis=1)
      start += len(part)
      on_block()
  if start < k:
    raise ValueError(
      f'{k} neighbours are asked for, but there are only {start} images.'
    )
  squares, rows = squares[:, :k], rows[:, :k]
  squares[squares <= _SAME * lengths] = 0
  if metric == 'cosine':
    # |x - y|^2 = 2 (1 - cosine) for vectors of length 1.
    return rows, squares / 2
  return rows, np.sqrt(squares)


def _prepared(x: np.ndarray, metric: str, mean: np.ndarray) -> np.ndarray:
  """Returns float64 [n, D], for cosines of length 1; zeros stay zeros."""
  x = np.array(x, np.float64)
  if metric == 'cosine':
    length = np.sqrt(np.einsum('nd,nd->n', x, x))[:, None]
    x /= np.where(length, length, 1)
  else:
    # Distances stay the same, but a common offset costs no digits.
    x -= mean
  return x


def vote(
  rows: np.ndarray,
  distances: np.ndarray,
  labels: np.ndarray,
  k: int,
  weights: str,
  temperature: float,
) -> np.ndarray:
  """Returns the class that the k nearest neighbours of each query vote for.

  Of classes with the same votes, the one with the smallest number wins.

  Args:
    rows: at least k neighbours of each query, see `nearest`.
    distances: their distances.
    labels: the classes of the rows, [N].
    k: how many neighbours vote.
    weights: 'uniform' gives each neighbour one vote. 'softmax' gives it
      exp(cosine / temperature) votes (arXiv:1805.01978, §3.4). 'distance' gives
      it 1 / distance votes; if a distance is 0, only such neighbours vote.
    temperature: see 'softmax'.

  Returns:
    int64 [Q].
  """
  chosen, distances = labels[rows[:, :k]], distances[:, :k]
  strength = np.ones(distances.shape)
  if weights == 'softmax':
    # Relative to the nearest, so that none overflows.
    strength = np.exp((distances[:, :1] - distances) / temperature)
  elif weights == 'distance':
    zero = distances == 0
    strength = np.where(
      zero.any(axis=1, keepdims=True), zero, 1 / np.where(zero, 1, distances)
    )
  return np.array(
    [
      np.bincount(classes, votes).argmax()
      for classes, votes in zip(chosen, strength, strict=True)
    ]
  )
