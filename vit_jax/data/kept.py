"""Drawn images, kept in a file that all processes of a machine fill together.

Record k lies at k times its size: the image, its labels, and a checksum of
both. Nothing says which records are there. One that no process has written
yet reads as zeros or is cut off, and one that a killed process half wrote is a
mixture; the checksum is wrong for all of them, so they are drawn again.
Processes need no locks: those that write the same record write the same bytes.

Reads and writes are calls that name their place, not a memory map: a full disk
or a truncated file is an error here, there a signal that ends the process.
"""

import contextlib
import functools
import math
import os
import weakref
import zlib

import numpy as np
from absl import logging

_CHECKSUM_BYTES = 4


class Kept:
  """The images of one split, uint8, with their labels, each below 256."""

  def __init__(self, path: str, image_shape: tuple[int, ...], labels: int):
    """Opens the file, or creates it, empty, with its folder.

    What cannot be kept (a remote path, a folder or a file that may not be
    written, a full disk) is drawn whenever it is read, after one warning: the
    data are the same. A file that may only be read still is.

    Args:
      path: the file's; `~` is expanded.
      image_shape: of one image, [height, width, channels].
      labels: how many labels an image has.
    """
    self._shape = image_shape
    self._image_bytes = math.prod(image_shape)
    self._size = self._image_bytes + labels + _CHECKSUM_BYTES
    self._path = os.path.expanduser(path)
    self._descriptor = None
    self._writable = False
    if '://' in path:
      _warn(os.path.dirname(path), 'this is no local folder')
      return
    try:
      os.makedirs(os.path.dirname(self._path), exist_ok=True)
      self._open(os.O_RDWR | os.O_CREAT)
      self._writable = True
    except OSError as error:
      self._give_up(error)
      with contextlib.suppress(OSError):
        self._open(os.O_RDONLY)

  def _open(self, flags: int) -> None:
    """Opens the file for as long as this object lives."""
    self._descriptor = os.open(self._path, flags, 0o666)
    # Not at exit, when threads may still read.
    weakref.finalize(self, os.close, self._descriptor).atexit = False

  def read(self, index: int) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Reads a record.

    Returns:
      The image, uint8 of the shape given, which the caller may change, and the
      labels; None if it is not kept, or damaged.
    """
    if self._descriptor is None:
      return None
    record = np.empty(self._size, np.uint8)
    count = os.preadv(self._descriptor, [record], index * self._size)
    content, checksum = record[:-_CHECKSUM_BYTES], record[-_CHECKSUM_BYTES:]
    if count < self._size or checksum.tobytes() != _checksum(content):
      return None
    image = content[: self._image_bytes].reshape(self._shape)
    return image, tuple(content[self._image_bytes :].tolist())

  def write(self, index: int, image: np.ndarray, labels: list[int]) -> None:
    """Keeps a record, if that is possible."""
    if not self._writable:
      return
    content = np.concatenate([image.ravel(), np.array(labels, np.uint8)])
    record = content.tobytes() + _checksum(content)
    try:
      os.pwrite(self._descriptor, record, index * self._size)
    except OSError as error:
      self._writable = False
      self._give_up(error)

  def _give_up(self, error: OSError) -> None:
    _warn(os.path.dirname(self._path), error.strerror)


def _checksum(content: np.ndarray) -> bytes:
  return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, 'little')


@functools.cache
def _warn(folder: str, reason: str) -> None:
  """Warns once in a process, however many splits and sources there are."""
  logging.warning(
    'Images that are not in %s are drawn at every read, as none can be kept'
    ' there: %s. Set data.data_dir to a local folder that can be written, or to'
    ' none.',
    *(folder, reason),
  )
