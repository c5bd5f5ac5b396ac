"""Decoded images, kept in memory for a run's next epochs and evaluations."""

import threading
from collections.abc import Hashable

from absl import logging

from vit_jax.data.source import Record

# Index of a record -> it, with a decoded image, and the number of operations
# that made the image.
Table = dict[int, tuple[Record, int]]


class Cache:
  """Decoded images of some views, which the threads of a process share."""

  def __init__(self, gib: float):
    """Makes an empty cache.

    Args:
      gib: the most that it may hold, in GiB.

    Raises:
      ValueError: that is nothing.
    """
    if gib <= 0:
      raise ValueError(f'data.cache_gib={gib:g} must be more than 0')
    self._room, self._is_full = int(gib * 2**30), False
    self._lock = threading.Lock()
    # (id of a view, preprocess) -> the view, which must stay, and its table.
    self._tables: dict[Hashable, tuple[object, Table]] = {}

  def table(self, view: object, preprocess: Hashable) -> Table:
    """Returns what is kept of a view: the same table each time.

    Args:
      view: the view.
      preprocess: what is done to its images.
    """
    key = id(view), preprocess
    return self._tables.setdefault(key, (view, {}))[1]

  def put(self, table: Table, index: int, record: Record, done: int) -> None:
    """Keeps a record, if there is room.

    Args:
      table: that of the view.
      index: of the record in the view.
      record: it, with an image of uint8 [h, w, c] that nothing else refers to.
      done: number of operations that made the image.
    """
    with self._lock:
      if record.image.nbytes <= self._room:
        self._room -= record.image.nbytes
        table[index] = record, done
      elif not self._is_full:
        self._is_full = True
        logging.warning(
          'The cache is full. Images that are not in it are decoded each time;'
          ' data.cache_gib sets its size.'
        )
