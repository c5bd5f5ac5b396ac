"""Rendered images, kept in a file that all processes of a machine fill.

Record k starts at byte k times the record size. It holds the image, its labels,
and a checksum of both. There is no index of the written records. A record that
no process has written yet reads as zeros or is cut off, and a killed process
may leave a half-written one. The checksum is wrong in all these cases, so the
image is rendered again. Processes need no locks: all of them write the same
bytes to a record.

`preadv` and `pwrite` replace a memory map: with a full disk or a truncated file
they raise an error, where a memory map would end the process by a signal.
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
    """Opens the file, or creates an empty one and its folder.

    If nothing can be kept (a remote path, a folder or file without permission
    to write, a full disk), this warns once, and every read renders the same
    images again. A read-only file is still read.

    Args:
      path: path of the file; `~` is expanded.
      image_shape: shape of an image, [height, width, channels].
      labels: number of labels of an image.
    """
    self._shape = image_shape
    self._image_bytes = math.prod(image_shape)
    self._size = self._image_bytes + labels + _CHECKSUM_BYTES
    self._path = os.path.expanduser(path)
    self._descriptor = None
    self._writable = False
    if '://' in path:
      _warn(os.path.dirname(path), 'this is not a local folder')
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
    # The file stays open at exit, since threads may still read.
    weakref.finalize(self, os.close, self._descriptor).atexit = False

  def read(self, index: int) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Reads a record.

    Returns:
      The image, uint8 of `image_shape`, which the caller may modify, and the
      labels; None if the record is missing or damaged.
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
    """Writes a record, if the file is writable."""
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
  """Warns once per process, however many splits and sources there are."""
  logging.warning(
    'Images that are not in %s are rendered at every read, because none can be'
    " kept there: %s. Set data.data_dir to a writable local folder, or to ''.",
    *(folder, reason),
  )
