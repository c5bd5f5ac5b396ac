"""Searches a block for pairs, and compares their pixels."""

import concurrent.futures
import typing
from collections.abc import Callable, Sequence

import numpy as np

from vit_jax.dedup import matching, search
from vit_jax.dedup import stored as stored_lib

if typing.TYPE_CHECKING:
  from vit_jax.dedup import work


def of_block(job: 'work.Work', number: int) -> dict[str, np.ndarray]:
  """Returns the pairs of a block of the data.

  Returns:
    Arrays [pairs], sorted by `index`, `test` and `test_index`: `index` in the
    data, `test` (number of the set) and `test_index` there, `distance` in
    bits, `view` of the test image, and `correlation`, see `matching`.
  """
  block = job.blocks(job.images)[number]
  stored = job.hashes(number)
  (rows,) = np.nonzero(stored['state'] == stored_lib.HASHED)
  targets = stored['hash'][rows, 0]
  found = []
  for test, queries in enumerate(job.queries):
    for other, images in enumerate(job.blocks(queries)):
      if not job.tests and other > number:
        break
      stored = job.query_hashes(test, other)
      (query_rows,) = np.nonzero(stored['state'] == stored_lib.HASHED)
      near = search.pairs(
        targets, stored['hash'][query_rows], job.settings.max_distance
      )
      index = block.start + rows[near.target]
      test_index = images.start + query_rows[near.query]
      # Inside one set, each pair counts once, and no image with itself.
      kept = slice(None) if job.tests else test_index < index
      found += zip(
        index[kept].tolist(),
        [test] * len(index[kept]),
        test_index[kept].tolist(),
        near.distance[kept].tolist(),
        near.views[kept].tolist(),
        strict=True,
      )
  found.sort()
  return _compare(job, found)


def _compare(job: 'work.Work', found: list[tuple]) -> dict[str, np.ndarray]:
  """Compares the pixels of pairs, and returns their columns."""
  correlation = np.zeros(len(found), np.float32)
  view = np.zeros(len(found), np.int16)
  starts = [
    row
    for row in range(len(found))
    if not row or found[row][0] != found[row - 1][0]
  ]

  def compare(start):
    index = found[start][0]
    image = job.images.grey(index)
    for row in range(start, len(found)):
      if found[row][0] != index:
        break
      _, test, test_index, _, views = found[row]
      other = job.queries[test].kept_grey(test_index)
      views = [v for v in views if v >= 0]
      correlation[row], view[row] = matching.correlation(image, other, views)

  in_threads(compare, starts, job.settings.threads)
  kinds = {'index': np.int64, 'test': np.int16, 'test_index': np.int64}
  columns = {
    key: np.array([pair[i] for pair in found], kind)
    for i, (key, kind) in enumerate((kinds | {'distance': np.int16}).items())
  }
  return columns | {'view': view, 'correlation': correlation}


def in_threads(work: Callable, items: Sequence, threads: int) -> None:
  """Calls a function for all items; raises the first one's error."""
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for _ in pool.map(work, items):
      pass
