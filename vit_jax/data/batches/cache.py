"""Decoded images, kept for a run's next epochs and evaluations.

A cache is a file without a name, in memory or on a local disk, that threads and
worker processes share. It is gone with the last process that uses it. So it
leaves nothing behind, and never holds an image of yesterday's data.
"""

import contextlib
import fcntl
import mmap
import os
import pathlib
import pickle
import re
import shutil
import tempfile
import threading
import weakref

import numpy as np
from absl import logging

from vit_jax.data import ops
from vit_jax.data.source import Record, View

MEMORY = 'memory'  # In place of a folder.

# Unsigned 64-bit numbers are all that the file has but for images. The first
# is the offset of the end, and the second whether somebody said that it is
# full. A table has the offsets of a view's images, or 0; an image begins with
# the length of its description.
_NUMBER = 8
_HEADER = 2 * _NUMBER


class Cache:
  """A file of decoded images, in reach of worker processes."""

  def __init__(self, place: str, gib: float):
    """Makes an empty cache.

    Args:
      place: MEMORY, or a local folder.
      gib: the most that it may hold, in GiB.

    Raises:
      ValueError: there is no such folder, or it has less space.
    """
    size = int(gib * 2**30)
    free, self._file = _in_memory() if place == MEMORY else _on_disk(place)
    weakref.finalize(self, os.close, self._file).atexit = False
    if not _HEADER < size <= free:
      raise ValueError(
        f'data.cache_gib={gib:g} must be more than 0, and no more than the'
        f' {free / 2**30:.1f} GiB that are free in data.cache={place!r}'
      )
    os.ftruncate(self._file, size)  # Takes no space yet.
    self._open(size)
    self.write(0, _HEADER)
    self._kept: dict[tuple, tuple[View, Images]] = {}

  def _open(self, size: int) -> None:
    self._size = size
    self._lock = threading.Lock()
    self.memory = mmap.mmap(self._file, size, prot=mmap.PROT_READ)

  def __reduce__(self):
    return _attach, (f'/proc/{os.getpid()}/fd/{self._file}', self._size)

  def of(self, view: View, preprocess: ops.Preprocess) -> 'Images':
    """Returns the place of a view's images, and the same one the next time.

    Args:
      view: the view; it exists as long as the cache.
      preprocess: what is done to its images.
    """
    key = id(view), preprocess
    if key not in self._kept:
      table = self.add([bytes(_NUMBER * len(view))])
      self._kept[key] = view, Images(self, table)
    return self._kept[key][1]

  def number(self, offset: int) -> int:
    """Returns the number that is stored at an offset."""
    return int.from_bytes(self.memory[offset : offset + _NUMBER], 'little')

  def write(self, offset: int, number: int) -> None:
    """Stores a number at an offset."""
    os.pwrite(self._file, number.to_bytes(_NUMBER, 'little'), offset)

  def add(self, parts: list) -> int:
    """Adds bytes, and returns their offset, or 0 if there is no space."""
    # Other processes wait, too; a process that dies lets go.
    with self._lock:
      fcntl.lockf(self._file, fcntl.LOCK_EX)
      try:
        return self._add(parts)
      finally:
        fcntl.lockf(self._file, fcntl.LOCK_UN)

  def _add(self, parts: list) -> int:
    start, size = self.number(0), sum(map(len, parts))
    if start + size <= self._size:
      with contextlib.suppress(OSError):  # Such as of a full disk.
        if os.pwritev(self._file, parts, start) == size:
          self.write(0, start + size + -size % _NUMBER)
          return start
    if not self.number(_NUMBER):
      self.write(_NUMBER, 1)
      logging.warning(
        'The cache is full with %.1f GiB. Images that are not in it are'
        ' decoded each time; data.cache_gib sets its size.',
        start / 2**30,
      )
    return 0


class Images:
  """The images of a view in a cache."""

  def __init__(self, cache: Cache, table: int):
    """Finds them by the offset of their table; 0: there is none."""
    self.cache = cache
    self._table = table

  def get(self, index: int) -> tuple[Record, int] | None:
    """Returns what `put` was given for a record, or None.

    The image is read-only, and needs no copy.
    """
    offset = self._table and self.cache.number(self._table + _NUMBER * index)
    if not offset:
      return None
    pixels = offset + _NUMBER + self.cache.number(offset)
    shape, label, name, made = pickle.loads(
      self.cache.memory[offset + _NUMBER : pixels]
    )
    image = np.ndarray(shape, np.uint8, self.cache.memory, pixels)
    return Record(image, label, name), made

  def put(self, index: int, record: Record, made: int) -> None:
    """Keeps a record, if there is space.

    Args:
      index: of the record in the view.
      record: it, with an image of uint8 [h, w, c].
      made: number of operations that made the image.
    """
    if not self._table:
      return
    image = np.ascontiguousarray(record.image)
    about = pickle.dumps((image.shape, record.label, record.name, made))
    length = len(about).to_bytes(_NUMBER, 'little')
    offset = self.cache.add([length, about, image.reshape(-1).data])
    if offset:
      # After the image is there, since others read without a lock.
      self.cache.write(self._table + _NUMBER * index, offset)


def _attach(file: str, size: int) -> Cache:
  """Opens a cache in a worker, which lives as long as the cache."""
  cache = Cache.__new__(Cache)
  cache._file = os.open(file, os.O_RDWR)
  cache._open(size)
  return cache


def _in_memory() -> tuple[int, int]:
  """Returns the free memory in bytes, and the descriptor of a file in it."""
  if not hasattr(os, 'memfd_create'):
    raise ValueError(f'data.cache={MEMORY!r} needs Linux; name a local folder')
  text = pathlib.Path('/proc/meminfo').read_text()
  free = 1024 * int(re.search(r'MemAvailable:\s+(\d+)', text)[1])
  with contextlib.suppress(OSError, ValueError):  # No limit of a container.
    group = pathlib.Path('/sys/fs/cgroup')
    limit = int((group / 'memory.max').read_text())
    free = min(free, limit - int((group / 'memory.current').read_text()))
  return free, os.memfd_create('vit_jax cache')


def _on_disk(folder: str) -> tuple[int, int]:
  """Returns the free bytes of a folder, and the descriptor of a file in it."""
  folder = os.path.expanduser(folder)
  if not os.path.isdir(folder):
    raise ValueError(
      f'data.cache={folder!r} is no local folder; name one, or {MEMORY!r}'
    )
  with tempfile.TemporaryFile(dir=folder) as file:
    return shutil.disk_usage(folder).free, os.dup(file.fileno())
