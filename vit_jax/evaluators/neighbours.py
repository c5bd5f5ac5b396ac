"""Finds the nearest neighbours of feature vectors, exactly.

The devices compute distances in float32, block by block, and propose a few more
neighbours than were asked for. The host computes the distances of these in
float64, and keeps the nearest. The result is therefore exact, unless more than
`_SPARE` rows are equal to the last neighbour within float32's rounding. Of rows
at the same distance, the one that comes first is nearer.

Axes: `Q` queries, `N` rows to search, `D` features, `K` neighbours.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding

METRICS = ('cosine', 'euclidean')

# How many more neighbours the devices propose.
_SPARE = 32
# Queries and rows, the latter per device, whose distances are computed at once:
# 256 MB of them.
_QUERIES = 1024
_ROWS = 65_536
# Pairs whose distance the host computes at once.
_PAIRS = 16_384


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
    mesh: the devices, which share the rows of a block.
    on_block: called after each part of a block, in both passes.

  Raises:
    ValueError: there are fewer than k rows, the numbers of features differ, or
      a feature is not finite.
  """
  _check_finite(queries, 'query')
  search = _Search(queries, k + _SPARE, metric, mesh)
  ends = [0]
  for block in blocks:
    if block.shape[1:] != queries.shape[1:]:
      raise ValueError(
        f'The queries have {queries.shape[1]} features, but the rows to search'
        f' {block.shape[1]}: use features of the same model and layer.'
      )
    _check_finite(block, 'row')
    search.add(block, ends[-1], on_block)
    ends.append(ends[-1] + len(block))
  if ends[-1] < k:
    raise ValueError(
      f'{k} neighbours are asked for, but there are only {ends[-1]} images.'
    )
  rows = search.proposed()[:, : ends[-1]]
  distances = np.empty(rows.shape)
  for index, start in enumerate(ends[:-1]):
    here = (rows >= start) & (rows < ends[index + 1])
    if here.any():
      block = blocks[index]
      for q, slot in _pairs(here):
        distances[q, slot] = _distances(
          queries[q], block[rows[q, slot] - start], metric
        )
        on_block()
  order = np.lexsort((rows, distances), axis=1)[:, :k]
  return Nearest(
    np.take_along_axis(rows, order, axis=1),
    np.take_along_axis(distances, order, axis=1),
  )


def _check_finite(features: np.ndarray, what: str) -> None:
  wrong = np.sum(~np.isfinite(features).all(axis=1))
  if wrong:
    raise ValueError(
      f'the features of {wrong} of {len(features)} images ({what}) are not'
      ' finite, because the weights have diverged or the features overflow. Use'
      ' an earlier checkpoint, or float32.'
    )


def _unit(x: np.ndarray, dtype: np.typing.DTypeLike) -> np.ndarray:
  """Returns vectors of length 1; zeros stay zeros."""
  x = np.asarray(x, dtype)
  length = np.sqrt(np.einsum('nd,nd->n', x, x, dtype=np.float64))
  return x / np.where(length, length, 1).astype(dtype)[:, None]


def _pairs(here: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the indices of the pairs `here` [Q, slots], `_PAIRS` at a time."""
  pairs = np.argwhere(here)
  for begin in range(0, len(pairs), _PAIRS):
    yield tuple(pairs[begin : begin + _PAIRS].T)


def _distances(x: np.ndarray, y: np.ndarray, metric: str) -> np.ndarray:
  """Returns the distances of the rows of two arrays, float64 [pairs]."""
  if metric == 'cosine':
    x, y = _unit(x, np.float64), _unit(y, np.float64)
    return 1 - np.einsum('pd,pd->p', x, y)
  return np.linalg.norm(np.asarray(x, np.float64) - y, axis=1)


class _Search:
  """Keeps the best candidates of all queries, on the devices."""

  def __init__(self, queries, count, metric, mesh):
    self._metric, self._mesh = metric, mesh
    self._shift = None
    self._queries = queries
    self._chunk = min(_QUERIES, max(1, len(queries)))
    self._count = count
    self._parts: list[jax.Array] = []  # [chunk, D] each
    self._best: list[tuple[jax.Array, jax.Array]] = []

  def _prepared(self, x: np.ndarray) -> np.ndarray:
    if self._metric == 'cosine':
      return _unit(x, np.float32)
    # Distances stay the same, but small vectors lose fewer digits.
    return (np.asarray(x, np.float64) - self._shift).astype(np.float32)

  def _start(self, block: np.ndarray) -> None:
    self._shift = np.mean(block, axis=0, dtype=np.float64)
    everywhere = NamedSharding(self._mesh, P())
    for begin in range(0, len(self._queries), self._chunk):
      part = self._prepared(self._queries[begin : begin + self._chunk])
      self._parts.append(_put(_padded(part, self._chunk), everywhere))
      shape = (self._chunk, self._count)
      self._best.append(
        (
          _put(np.full(shape, -np.inf, np.float32), everywhere),
          _put(np.zeros(shape, np.int32), everywhere),
        )
      )

  def add(self, block: np.ndarray, start: int, on_block) -> None:
    """Considers the rows of a block, whose first row has the index `start`."""
    if not len(block):
      return
    if not self._parts:
      self._start(block)
    split = sharding.batch_sharding(self._mesh)
    devices = self._mesh.shape['data'] * self._mesh.shape['fsdp']
    size = devices * min(_ROWS, -(-len(block) // devices))
    update = _compiled(self._mesh)
    for begin in range(0, len(block), size):
      part = self._prepared(block[begin : begin + size])
      bias = np.zeros(len(part), np.float32)
      if self._metric == 'euclidean':
        # -|x - y|^2 / 2 = xy - |y|^2 / 2 - |x|^2 / 2; the last is the same for
        # all rows.
        bias = -0.5 * np.einsum('nd,nd->n', part, part, dtype=np.float64)
      index = np.arange(start + begin, start + begin + size, dtype=np.int32)
      put = (
        _put(_padded(part, size), split),
        _put(_padded(np.float32(bias), size, -np.inf), split),
        _put(index, split),
      )
      for i, queries in enumerate(self._parts):
        self._best[i] = update(*put, queries, *self._best[i])
      jax.block_until_ready(self._best)  # Do not pile up blocks on the devices.
      on_block()

  def proposed(self) -> np.ndarray:
    """Returns the rows that may be the nearest, int64 [Q, count]."""
    if not self._best:
      return np.zeros((len(self._queries), self._count), np.int64)
    rows = np.concatenate([np.asarray(rows) for _, rows in self._best])
    return rows[: len(self._queries)].astype(np.int64)


def _padded(x: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
  missing = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, missing, constant_values=value)


def _put(x: np.ndarray, placed: NamedSharding) -> jax.Array:
  """Puts an array that all processes have on the devices."""
  return jax.make_array_from_callback(x.shape, placed, lambda at: x[at])


@functools.lru_cache(16)
def _compiled(mesh: jax.sharding.Mesh):
  """Returns the jitted update of the candidates by a part of the rows."""

  def local(rows, bias, index, queries, count):
    scores = bias + jnp.einsum(
      'qd,nd->qn', queries, rows, precision=jax.lax.Precision.HIGHEST
    )
    found, at = jax.lax.top_k(scores, min(count, len(rows)))
    return found, index[at]

  # `top_k` takes the first of equal scores, and earlier rows come first.
  def update(rows, bias, index, queries, scores, best):
    found = jax.shard_map(
      functools.partial(local, count=scores.shape[1]),
      mesh=mesh,
      in_specs=(P(sharding.BATCH), P(sharding.BATCH), P(sharding.BATCH), P()),
      out_specs=P(None, sharding.BATCH),
      check_vma=False,
    )(rows, bias, index, queries)
    all_scores = jnp.concatenate([scores, found[0]], axis=1)
    all_rows = jnp.concatenate([best, found[1]], axis=1)
    scores, at = jax.lax.top_k(all_scores, scores.shape[1])
    return scores, jnp.take_along_axis(all_rows, at, axis=1)

  return jax.jit(
    update, out_shardings=NamedSharding(mesh, P()), donate_argnums=(4, 5)
  )
