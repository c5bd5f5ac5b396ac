"""Nearest neighbours of frozen features, and classification by them.

The devices compute distances in float32, block by block, and propose a few more
neighbours than were asked for. The host computes the distances of these in
float64, and keeps the nearest. The result is therefore exact, unless more than
`_SPARE` rows are equal to the last neighbour within float32's rounding. Of rows
at the same distance, the one that comes first is nearer.

Scores of "DINO" (arXiv:2104.14294) are with 20 neighbours, the cosine, and the
weights 'softmax' at the temperature 0.07.

Axes: `Q` queries, `N` rows to search, `D` features, `K` neighbours, `S` chunks
of `C` queries.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, sharding
from vit_jax.evaluators import frozen
from vit_jax.evaluators.evaluator import OnBatch
from vit_jax.evaluators.frozen import Features

METRICS = ('cosine', 'euclidean')
WEIGHTS = ('uniform', 'softmax', 'distance')

# How many more neighbours the devices propose.
_SPARE = 32
# Queries per device and rows whose distances are computed at once: 256 MB.
_QUERIES = 1024
_ROWS = 65_536
# Pairs whose distance the host computes at once, and queries whose votes it
# counts at once.
_PAIRS = 16_384
_VOTES = 4096


@dataclasses.dataclass(frozen=True)
class NearestNeighbours(frozen.Classifier):
  """Classification by nearest neighbours; see `vote`.

  Attributes:
    k: numbers of neighbours, each a separate result.
    metric: one of METRICS.
    weights: one of WEIGHTS.
    temperature: of 'softmax'.
  """

  k: tuple[int, ...]
  metric: str
  weights: str
  temperature: float
  l2 = ()

  def __post_init__(self):
    frozen.check_numbers('k', self.k, 1)
    frozen.check_numbers('temperature', [self.temperature])
    for key, choices in (('metric', METRICS), ('weights', WEIGHTS)):
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

  def check(self, train: data.View) -> None:
    """Raises ValueError if there are fewer images than neighbours."""
    if len(train) < max(self.k):
      raise ValueError(
        f'k={self.k} needs {max(self.k)} training images, but {train.split!r}'
        f' has {len(train)}.'
      )

  def measure(
    self,
    features: Mapping[str, Features],
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_step: OnBatch = lambda: None,
  ) -> dict[str, float]:
    """Returns `{k}nn/accuracy` of each k; see `frozen.Classifier`."""
    train, test = features['train'], features['test']
    blocks = train.features
    found = nearest(
      [blocks] if isinstance(blocks, np.ndarray) else blocks,
      *(test.features, max(self.k), self.metric, mesh, on_step),
    )
    predicted = {
      k: vote(
        *(found, train.labels, num_classes, k, self.weights, self.temperature)
      )
      for k in self.k
    }
    return {
      f'{k}nn/accuracy': float(np.mean(classes == test.labels))
      for k, classes in predicted.items()
    }

  def summary(self, values: Mapping[str, float]) -> str:
    """Returns the accuracies in a few words."""
    return ', '.join(
      f'{k} neighbours {100 * values[f"{k}nn/accuracy"]:.2f}%' for k in self.k
    )


@dataclasses.dataclass(frozen=True)
class Nearest:
  """The nearest neighbours of each query, the nearest first.

  Attributes:
    rows: int64 [Q, K], indices of the rows.
    distances: float64 [Q, K], 1 - cosine, or the Euclidean distances.
  """

  rows: np.ndarray
  distances: np.ndarray


def nearest(
  blocks: Sequence[np.ndarray],
  queries: np.ndarray,
  k: int,
  metric: str,
  mesh: jax.sharding.Mesh,
  on_block: Callable[[], None] = lambda: None,
) -> Nearest:
  """Finds the nearest neighbours.

  All processes must call this with the same arguments.

  Args:
    blocks: the rows in blocks [n, D]. Each is taken twice, one at a time, so
      that a sequence may load them from files.
    queries: [Q, D].
    k: K, the number of neighbours.
    metric: one of METRICS.
    mesh: the devices, which share the queries.
    on_block: called after each part of a block, in both passes.

  Raises:
    ValueError: there are fewer than k rows, the numbers of features differ, or
      a feature is not finite.
  """
  frozen.check_finite(queries)
  rows, ends = _propose(blocks, queries, k + _SPARE, metric, mesh, on_block)
  if ends[-1] < k:
    raise ValueError(
      f'{k} neighbours are asked for, but there are only {ends[-1]} images.'
    )
  rows = rows[:, : ends[-1]]
  distances = np.empty(rows.shape)
  for index, start in enumerate(ends[:-1]):
    pairs = np.argwhere((rows >= start) & (rows < ends[index + 1]))
    block = blocks[index] if len(pairs) else None
    for begin in range(0, len(pairs), _PAIRS):
      q, slot = pairs[begin : begin + _PAIRS].T
      distances[q, slot] = _distances(
        queries[q], block[rows[q, slot] - start], metric
      )
      on_block()
  order = np.lexsort((rows, distances), axis=1)[:, :k]
  return Nearest(
    np.take_along_axis(rows, order, axis=1),
    np.take_along_axis(distances, order, axis=1),
  )


def _propose(blocks, queries, count: int, metric: str, mesh, on_block):
  """Returns rows that may be near, int64 [Q, count], and the blocks' ends."""
  devices = mesh.shape['data'] * mesh.shape['fsdp']
  chunk = devices * min(_QUERIES, -(-len(queries) // devices))  # C
  shape = (-(-len(queries) // chunk), chunk)  # S, C
  best = (
    np.full((*shape, count), -np.inf, np.float32),
    np.zeros((*shape, count), np.int32),
  )
  shift, ends = None, [0]
  for block in blocks:
    if block.shape[1:] != queries.shape[1:]:
      raise ValueError(
        f'The queries have {queries.shape[1]} features, but the rows to search'
        f' {block.shape[1]}: use features of the same model and layer.'
      )
    frozen.check_finite(block)
    if shift is None:
      shift = np.mean(block, axis=0, dtype=np.float64)
      x = _padded(_prepared(queries, metric, shift), math.prod(shape))
      x = _put(x.reshape(*shape, -1), mesh, P(None, sharding.BATCH))
    size = min(_ROWS, len(block))
    for begin in range(0, len(block), size):
      part = _prepared(block[begin : begin + size], metric, shift)
      bias = np.zeros(len(part))
      if metric == 'euclidean':
        # -|x - y|^2 / 2 = xy - |y|^2 / 2 - |x|^2 / 2; the last is the same for
        # all rows.
        bias = -0.5 * np.einsum('nd,nd->n', part, part, dtype=np.float64)
      rows = (_padded(part, size), _padded(np.float32(bias), size, -np.inf))
      best = jax.device_get(
        _compiled(mesh)(
          x, *(_put(one, mesh, P()) for one in rows), ends[-1] + begin, *best
        )
      )
      on_block()
    ends.append(ends[-1] + len(block))
  return best[1].reshape(-1, count)[: len(queries)].astype(np.int64), ends


@functools.lru_cache(16)
def _compiled(mesh: jax.sharding.Mesh):
  """Returns the jitted update of the candidates by a part of the rows."""

  def update(queries, rows, bias, start, scores, best):
    """Each device has a share of the queries [S, C, D], and all rows [R, D]."""

    def chunk(of):
      x, scores, best = of
      new = bias + jnp.einsum(
        'cd,rd->cr', x, rows, precision=jax.lax.Precision.HIGHEST
      )
      # `top_k` takes the first of equal scores, and earlier rows come first.
      count = scores.shape[1]
      found, at = jax.lax.top_k(jnp.concatenate([scores, new], axis=1), count)
      old = jnp.take_along_axis(best, jnp.minimum(at, count - 1), axis=1)
      return found, jnp.where(at < count, old, start + at - count)

    return jax.lax.map(chunk, (queries, scores, best))

  # Every process gets all candidates.
  return jax.jit(update, out_shardings=NamedSharding(mesh, P()))


def _padded(x: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
  missing = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, missing, constant_values=value)


def _put(x: np.ndarray, mesh: jax.sharding.Mesh, spec: P) -> jax.Array:
  """Puts an array that all processes have on the devices."""
  placed = NamedSharding(mesh, spec)
  return jax.make_array_from_callback(x.shape, placed, x.__getitem__)


def _prepared(x: np.ndarray, metric: str, shift: np.ndarray) -> np.ndarray:
  if metric == 'cosine':
    return _unit(x, np.float32)
  # Distances stay the same, but small vectors lose fewer digits.
  return (np.asarray(x, np.float64) - shift).astype(np.float32)


def _unit(x: np.ndarray, dtype: np.typing.DTypeLike) -> np.ndarray:
  """Returns vectors of length 1; zeros stay zeros."""
  x = np.asarray(x, dtype)
  length = np.sqrt(np.einsum('nd,nd->n', x, x, dtype=np.float64))
  return x / np.where(length, length, 1).astype(dtype)[:, None]


def _distances(x: np.ndarray, y: np.ndarray, metric: str) -> np.ndarray:
  """Returns the distances of the rows of two arrays, float64 [pairs]."""
  if metric == 'cosine':
    x, y = _unit(x, np.float64), _unit(y, np.float64)
    return 1 - np.einsum('pd,pd->p', x, y)
  return np.linalg.norm(np.asarray(x, np.float64) - y, axis=1)


def vote(
  found: Nearest,
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
