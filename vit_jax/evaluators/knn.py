"""Nearest neighbours of frozen features, and classification by them.

Near means a large cosine. scikit-learn finds neighbours on the host, in
float64, exact up to 1e-12. Of rows at the same distance, the one that comes
first is nearer, unless more than `_SPARE` rows are as far as the last
neighbour. The processes share the queries.

Scores of "DINO" (arXiv:2104.14294) are with 20 neighbours and the weights
'softmax' at the temperature 0.07.

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
# Squared distances of vectors of length 1 are the same if they differ less than
# this: what rounding may do.
_SAME = 1e-12


class NearestNeighbours(frozen.FrozenFeatures):
  """Classification by nearest neighbours; see `vote`."""

  def __init__(self, given: Context):
    """Checks the section; raises ValueError as `FrozenFeatures` does."""
    super().__init__(given)
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
    section: k, weights and temperature of a section `knn`.
    on_step: see `nearest`.
  """
  # Of more processes than images, some search for what others search for.
  shares = min(jax.process_count(), len(test.labels))
  share = slice(jax.process_index() % shares, None, shares)
  found = nearest(blocks, test.features, max(section.k), on_step, share)
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
  on_block: OnBatch = lambda: None,
  share: slice = slice(None),
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of queries, the nearest first.

  Args:
    blocks: the rows in blocks [n, D], which are taken one at a time, so that an
      iterable may load them from files.
    queries: [Q, D].
    k: K, the number of neighbours.
    on_block: called after each part of a block, equally often for any share.
    share: the queries whose neighbours are found.

  Returns:
    The indices of the rows, int64 [Q, K]; and the distances, 1 - cosine,
    float64 [Q, K]. Q is only the share.

  Raises:
    ValueError: there are fewer than k rows, or a feature is not finite.
  """
  from sklearn import neighbors  # Takes a second.

  frozen.check_finite(queries)
  size = min(_ROWS, max(k + _SPARE, _PAIRS // max(1, len(queries))))
  queries = _of_length_1(queries[share])
  squares = np.empty((len(queries), 0))
  rows, start = squares.astype(np.int64), 0
  for block in blocks:
    frozen.check_finite(block)
    for begin in range(0, len(block), size):
      part = _of_length_1(block[begin : begin + size])
      count = min(k + _SPARE, len(part))
      found = neighbors.NearestNeighbors(n_neighbors=count, algorithm='brute')
      distances, places = found.fit(part).kneighbors(queries)
      squares = np.concatenate([squares, distances**2], axis=1)
      rows = np.concatenate([rows, start + places], axis=1)
      order = np.lexsort((rows, np.round(squares / _SAME)), axis=1)
      order = order[:, : k + _SPARE]
      squares = np.take_along_axis(squares, order, axis=1)
      rows = np.take_along_axis(rows, order, axis=1)
      start += len(part)
      on_block()
  if start < k:
    raise ValueError(
      f'{k} neighbours are asked for, but there are only {start} images.'
    )
  # |x - y|^2 = 2 (1 - cosine) for vectors of length 1.
  return rows[:, :k], squares[:, :k] / 2


def _of_length_1(x: np.ndarray) -> np.ndarray:
  """Returns the vectors as float64 [n, D], of length 1; zeros stay zeros."""
  x = np.array(x, np.float64)
  length = np.sqrt(np.einsum('nd,nd->n', x, x))[:, None]
  return x / np.where(length, length, 1)


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
      exp(cosine / temperature) votes (arXiv:1805.01978, §3.4).
    temperature: see 'softmax'.

  Returns:
    int64 [Q].
  """
  chosen, distances = labels[rows[:, :k]], distances[:, :k]
  strength = np.ones(distances.shape)
  if weights == 'softmax':
    # Relative to the nearest, so that none overflows.
    strength = np.exp((distances[:, :1] - distances) / temperature)
  return np.array(
    [
      np.bincount(classes, votes).argmax()
      for classes, votes in zip(chosen, strength, strict=True)
    ]
  )
