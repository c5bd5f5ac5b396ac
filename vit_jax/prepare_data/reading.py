"""Reads records in some order; several at the same time from a bucket."""

import collections
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures

import numpy as np

from vit_jax.data.source import Record, Source, View, read_labels

_AHEAD = 32  # Records that are read at the same time if each is a round trip.
_TRIES = 5
_WAIT_SEC = 1.0
# A file that is missing, or that is no regular file, is reported; any other
# error of reading may pass, and must not cost an image.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)


def records(
  source: Source, split: str, indices: Iterable[int]
) -> Iterator[tuple[int, Record | OSError]]:
  """Yields the place among the indices, and the record or why there is none.

  Raises:
    OSError: the source does not answer, even after some tries.
  """
  if not source.info.is_remote:
    for place, index in enumerate(indices):
      yield place, read(source, split, index)
    return
  with futures.ThreadPoolExecutor(_AHEAD) as pool:
    pending = collections.deque()
    for place, index in enumerate(indices):
      pending.append((place, pool.submit(read, source, split, index)))
      if len(pending) >= 2 * _AHEAD:
        place, future = pending.popleft()
        yield place, future.result()
    for place, future in pending:
      yield place, future.result()


def read(source: Source, split: str, index: int) -> Record | OSError:
  """Reads a record, or returns why there will be none."""
  for attempt in range(_TRIES):
    try:
      return source.read(split, index)
    except _FINAL as error:
      return error
    except OSError as error:
      if 'not a regular file' in str(error):
        return error
      if attempt == _TRIES - 1:
        raise
      time.sleep(_WAIT_SEC * 2**attempt)
  raise AssertionError


def labels(source: Source, split: str) -> np.ndarray | list[Sequence[int]]:
  """Returns all labels of a split: int32 [records], or a list of several."""
  return read_labels(View(source, split))
