"""Finds pairs of hashes that differ in few bits; exact, by faiss.

Axes: T hashes that are searched, Q query images, V views of each, B bytes.
"""

from typing import NamedTuple

import numpy as np

from vit_jax.dedup import hashing
from vit_jax.runtime import installed

# Query images of one search: bounds the memory that matches take.
_QUERIES = 2048
# Views of a pair that are kept, those with the nearest hashes.
_VIEWS = 2


class Found(NamedTuple):
  """Pairs, sorted by target and query.

  Attributes:
    target: int64 [pairs], rows of the searched hashes.
    query: int64 [pairs], rows of the queries.
    distance: int16 [pairs], number of bits that differ in the nearest view.
    views: int16 [pairs, 2], the nearest views; -1 if there is only one.
  """

  target: np.ndarray
  query: np.ndarray
  distance: np.ndarray
  views: np.ndarray


def check_faiss(what: str) -> None:
  """Raises ValueError unless faiss is installed.

  Args:
    what: the thing that needs it, for the message.
  """
  installed.require('faiss', extra='dedup', what=what)


def pairs(targets: np.ndarray, queries: np.ndarray, max_distance: int) -> Found:
  """Returns all pairs in which a view differs in at most some bits.

  Args:
    targets: uint8 [T, B].
    queries: uint8 [Q, V, B].
    max_distance: number of bits.
  """
  import faiss

  index = faiss.IndexBinaryFlat(hashing.BITS)
  index.add(np.ascontiguousarray(targets))
  parts = [
    _of_part(index, queries[start : start + _QUERIES], max_distance)
    for start in range(0, len(queries), _QUERIES)
  ]
  starts = range(0, len(queries), _QUERIES)
  target, query, distance, views = (
    np.concatenate([part[i] for part in parts] or [empty])
    for i, empty in enumerate(_none())
  )
  query = query + np.repeat(
    np.array(starts, np.int64), [len(part.target) for part in parts]
  )
  order = np.lexsort((query, target))
  return Found(target[order], query[order], distance[order], views[order])


def _none() -> Found:
  return Found(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int16),
    np.empty((0, _VIEWS), np.int16),
  )


def _of_part(index, queries: np.ndarray, max_distance: int) -> Found:
  count, views, _ = queries.shape
  if not count or not index.ntotal:
    return _none()
  flat = np.ascontiguousarray(queries.reshape(count * views, -1))
  # faiss finds distances below its radius.
  limits, distance, target = index.range_search(flat, max_distance + 1)
  rows = np.repeat(np.arange(len(flat)), np.diff(limits.astype(np.int64)))
  query, view = np.divmod(rows, views)
  order = np.lexsort((view, distance, query, target))
  target, query, view, distance = (
    a[order] for a in (target, query, view, distance)
  )
  new = np.ones(len(target), bool)
  new[1:] = (target[1:] != target[:-1]) | (query[1:] != query[:-1])
  (first,) = np.nonzero(new)
  second = first + 1
  has_second = np.zeros(len(first), bool)
  inside = second < len(target)
  has_second[inside] = ~new[second[inside]]
  nearest = np.full((len(first), _VIEWS), -1, np.int16)
  nearest[:, 0] = view[first]
  nearest[has_second, 1] = view[second[has_second]]
  return Found(
    target[first].astype(np.int64),
    query[first].astype(np.int64),
    distance[first].astype(np.int16),
    nearest,
  )
