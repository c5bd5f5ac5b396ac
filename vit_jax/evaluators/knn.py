"""Nearest neighbours of frozen features, and classification by them.

Near means a large cosine. scikit-learn finds neighbours on the host, in
float64.

Scores of "DINO" (arXiv:2104.14294) are with 20 neighbours and the weights
'softmax' at the temperature 0.07.

Axes: `Q` queries, `N` rows to search, `D` features, `K` neighbours.
"""

from collections.abc import Mapping

import ml_collections
import numpy as np

from vit_jax.evaluators import frozen
from vit_jax.evaluators.evaluator import OnBatch
from vit_jax.evaluators.frozen import Features

# The most pairs of a query and a row to search at once: a watchdog waits for
# each search.
_PAIRS = 2**32


class NearestNeighbours(frozen.FrozenFeatures):
  """Classification by nearest neighbours; see `vote`."""

  def measure(
    self, features: Mapping[str, Features], on_step: OnBatch
  ) -> dict[str, float]:
    """See `accuracies`."""
    return accuracies(features, self.section, on_step)


def accuracies(
  features: Mapping[str, Features],
  section: ml_collections.ConfigDict,
  on_step: OnBatch = lambda: None,
) -> dict[str, float]:
  """Returns `{k}nn/accuracy` of each k.

  Args:
    features: 'train', among which neighbours are found, and 'test'.
    section: k, weights and temperature of a section `knn`.
    on_step: see `nearest`.
  """
  train, test = features['train'], features['test']
  found = nearest(train.features, test.features, max(section.k), on_step)
  how = section.weights, section.temperature
  return {
    f'{k}nn/accuracy': float(
      np.mean(vote(*found, train.labels, k, *how) == test.labels)
    )
    for k in section.k
  }


def nearest(
  rows: np.ndarray,
  queries: np.ndarray,
  k: int,
  on_part: OnBatch = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the nearest neighbours of queries, the nearest first.

  Args:
    rows: [N, D].
    queries: [Q, D].
    k: K, the number of neighbours.
    on_part: called after each part of the queries.

  Returns:
    The indices of the rows, int64 [Q, K]; and the distances, 1 - cosine,
    float64 [Q, K].

  Raises:
    ValueError: there are fewer than k rows, or a feature is not finite.
  """
  from sklearn import neighbors  # Takes a second.

  frozen.check_finite(rows)
  frozen.check_finite(queries)
  search = neighbors.NearestNeighbors(n_neighbors=k, algorithm='brute')
  search.fit(_of_length_1(rows))
  found, parts = [], 1 + len(rows) * len(queries) // _PAIRS
  for part in np.array_split(_of_length_1(queries), parts):
    found.append(search.kneighbors(part))
    on_part()
  distances, places = map(np.concatenate, zip(*found, strict=True))
  # |x - y|^2 = 2 (1 - cosine) for vectors of length 1.
  return places, distances**2 / 2


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
