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

# The file begins with two numbers: its end, and whether somebody said that it
# is full. A table has, for each image of a view, where it begins, or 0. An
# image begins with the length of its description.
_NUMBER = np.dtype(np.uint64)
_END, _TOLD, _HEADER = 0, 1, 2


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
    size = int(gib * 2**30) // _NUMBER.itemsize * _NUMBER.itemsize
    free, file = _in_memory() if place == MEMORY else _on_disk(place)
    weakref.finalize(self, os.close, file).atexit = False
    if not _HEADER * _NUMBER.itemsize < size <= free:
      raise ValueError(
        f'data.cache_gib={gib:g} must be more than 0, and no more than the'
        f' {free / 2**30:.1f} GiB that are free in data.cache={place!r}'
      )
    os.ftruncate(file, size)  # Takes no space yet.
    header = np.array([_HEADER * _NUMBER.itemsize, 0], _NUMBER)
    os.pwrite(file, header.tobytes(), 0)
    self._open(file)
    # (id of a view, preprocess) -> the view, which must stay, and its table.
    self._tables: dict[tuple, tuple[View, int]] = {}

  def _open(self, file: int) -> None:
    self._file = file
    self._lock = threading.Lock()
    self._memory = mmap.mmap(file, 0)
    # What is written here lies where `_add` has written before. So a full disk
    # is an error there, and no signal here.
    self._numbers = np.frombuffer(self._memory, _NUMBER)

  def __reduce__(self):
    return _attach, (f'/proc/{os.getpid()}/fd/{self._file}',)

  def table(self, view: View, preprocess: ops.Preprocess) -> int:
    """Returns the place of a view's images, and the same one the next time.

    Args:
      view: the view; it exists as long as the cache.
      preprocess: what is done to its images.
    """
    key = id(view), preprocess
    if key not in self._tables:
      self._tables[key] = view, self._add([bytes(_NUMBER.itemsize * len(view))])
    return self._tables[key][1]

  def get(self, table: int, index: int) -> tuple[Record, int] | None:
    """Returns what `put` was given for a record, or None.

    The image is read-only, and needs no copy.
    """
    start = table and int(self._numbers[table + index])
    if not start:
      return None
    about = (start + 1) * _NUMBER.itemsize
    pixels = about + int(self._numbers[start])
    shape, label, name, done = pickle.loads(self._memory[about:pixels])
    image = np.ndarray(shape, np.uint8, self._memory, pixels)
    image.flags.writeable = False
    return Record(image, label, name), done

  def put(self, table: int, index: int, record: Record, done: int) -> None:
    """Keeps a record, if there is space.

    Args:
      table: what `table` returned for the view.
      index: of the record in the view.
      record: it, with an image of uint8 [h, w, c].
      done: number of operations that made the image.
    """
    image = np.ascontiguousarray(record.image)
    about = pickle.dumps((image.shape, record.label, record.name, done))
    length = _NUMBER.type(len(about)).tobytes()
    if start := table and self._add([length, about, image.reshape(-1).data]):
      # After the image is there, since others read without a lock.
      self._numbers[table + index] = start

  def _add(self, parts: list) -> int:
    """Adds bytes; returns the number that they begin at, 0 if none has room."""
    # Other processes wait, too; a process that dies lets go.
    with self._lock:
      fcntl.lockf(self._file, fcntl.LOCK_EX)
      try:
        start, size = int(self._numbers[_END]), sum(map(len, parts))
        if start + size <= len(self._memory):
          with contextlib.suppress(OSError):  # Such as of a full disk.
            if os.pwritev(self._file, parts, start) == size:
              self._numbers[_END] = start + size + -size % _NUMBER.itemsize
              return start // _NUMBER.itemsize
        if not self._numbers[_TOLD]:
          self._numbers[_TOLD] = 1
          logging.warning(
            'The cache is full with %.1f GiB. Images that are not in it are'
            ' decoded each time; data.cache_gib sets its size.',
            start / 2**30,
          )
        return 0
      finally:
        fcntl.lockf(self._file, fcntl.LOCK_UN)


def _attach(path: str) -> Cache:
  """Opens a cache in a worker, which lives as long as the cache."""
  cache = Cache.__new__(Cache)
  cache._open(os.open(path, os.O_RDWR))
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
