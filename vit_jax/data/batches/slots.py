"""Memory of batches that are being made, in reach of worker processes.

A slot holds one batch. Threads and worker processes write rows straight into
it, and the batch that the pipeline yields is that memory: nothing is copied.
The slot is free again when no array refers to the batch any more, which JAX
tells too: it keeps the array until its transfer to the device is over.
"""

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Callable

import numpy as np

Batch = dict[str, np.ndarray]

# Unlike /dev/shm, which containers often limit to 64 MiB, a memfd is limited by
# memory alone, and it is gone with the last process that uses it.
SHAREABLE = hasattr(os, 'memfd_create')
# XLA's CPU client uses an array without a copy if it is aligned like this.
_ALIGNMENT = 64


class Slots:
  """Equal pieces of one block of memory, each for one batch.

  Attributes:
    count: number of slots.
  """

  def __init__(self, row: Batch, rows: int, count: int, file: str = ''):
    """Makes the memory, or maps that of another process.

    Args:
      row: any row of a batch; its shapes and dtypes count.
      rows: number of rows of a batch.
      count: number of slots.
      file: where another process shows the memory that it has made.
    """
    self.count = count
    self._arguments = row, rows, count
    self._layout = {}
    end = 0
    for key, value in row.items():
      value = np.asarray(value)
      shape = (rows, *value.shape)
      self._layout[key] = end, shape, value.dtype
      size = math.prod(shape) * value.dtype.itemsize
      end += -(-size // _ALIGNMENT) * _ALIGNMENT
    self._size = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
    self._file = -1
    if file:
      self._file = os.open(file, os.O_RDWR)
    elif SHAREABLE:
      self._file = os.memfd_create('vit_jax batches')
      os.ftruncate(self._file, self._size * count)
    if self._file >= 0:
      weakref.finalize(self, os.close, self._file).atexit = False
    self._memory = mmap.mmap(self._file, self._size * count)

  def __reduce__(self):
    return Slots, (*self._arguments, f'/proc/{os.getpid()}/fd/{self._file}')

  def arrays(self, slot: int) -> Batch:
    """Returns a slot's arrays, to write rows to."""
    return self._arrays(self._memory, slot * self._size)

  def lend(self, slot: int, on_free: Callable[[int], None]) -> Batch:
    """Returns a slot's arrays; `on_free(slot)` is called when they are gone.

    The call may come from any thread at any moment.
    """
    # An object of its own, since all views of an array share its base.
    owner = (ctypes.c_ubyte * self._size).from_buffer(
      self._memory, slot * self._size
    )
    weakref.finalize(owner, on_free, slot).atexit = False
    return self._arrays(owner, 0)

  def _arrays(self, memory, start: int) -> Batch:
    return {
      key: np.frombuffer(
        memory, dtype, math.prod(shape), start + offset
      ).reshape(shape)
      for key, (offset, shape, dtype) in self._layout.items()
    }
