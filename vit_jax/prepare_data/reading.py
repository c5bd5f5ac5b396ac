"""Reads records in some order; several at the same time from a bucket."""

import collections
from collections.abc import Iterable, Iterator
from concurrent import futures

from vit_jax.data import retrying
from vit_jax.data.source import Record, View

_AHEAD = 32  # Records that are read at the same time if each is a round trip.


def records(
  view: View, indices: Iterable[int]
) -> Iterator[tuple[int, Record | OSError]]:
  """Yields the place among the indices, and the record or why there is none.

  Raises:
    ReadError: the source does not answer.
  """
  if not view.source.info.is_remote:
    for place, index in enumerate(indices):
      yield place, read(view, index)
    return
  with futures.ThreadPoolExecutor(_AHEAD) as pool:
    pending = collections.deque()
    for place, index in enumerate(indices):
      pending.append((place, pool.submit(read, view, index)))
      if len(pending) >= 2 * _AHEAD:
        place, future = pending.popleft()
        yield place, future.result()
    for place, future in pending:
      yield place, future.result()


def read(view: View, index: int) -> Record | OSError:
  """Reads a record, or returns why there will be none."""
  try:
    return retrying.read(view, index)
  except OSError as error:
    return error
