"""The names of a data set's files: how they are found, and their splits."""

import array
import collections
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import logging
from etils import epath

from vit_jax.runtime import printable

# The formats that OpenCV's wheels decode.
SUFFIXES = (
  *('.jpg', '.jpeg', '.jpe', '.png', '.webp', '.bmp', '.dib', '.tif', '.tiff'),
  *('.jp2', '.ppm', '.pgm', '.pbm', '.pnm', '.gif', '.avif'),
)
# Folders, and parts of the names of files, that name a split.
SPLITS = ('train', 'validation', 'valid', 'val', 'test')
# Folders that archives and file systems leave beside the images.
_CLUTTER = ('__MACOSX', '$RECYCLE.BIN', 'lost+found')


def is_remote(path: str) -> bool:
  """Returns whether a path is in a remote store such as `gs://`."""
  return '://' in path


def walk(root: str) -> Iterator[tuple[str, list[str]]]:
  """Yields each folder below a root, and the names of the files in it.

  Hidden files and folders are left out.

  Yields:
    The folder relative to the root: '' or a path that ends with '/'. A folder
    comes before those in it; otherwise, the order is arbitrary.

  Raises:
    OSError: a folder is gone, or links lead in a circle.
  """
  entries = _remote if is_remote(root) else _local
  waiting = ['']
  while waiting:
    folder, names = waiting.pop(), []
    for name, is_folder in entries(f'{root.rstrip("/")}/{folder}'):
      if name.startswith('.') or name in _CLUTTER:
        continue
      if is_folder:
        waiting.append(f'{folder}{name}/')
      else:
        names.append(name)
    yield folder, names


def _remote(path: str) -> Iterator[tuple[str, bool]]:
  """Yields the names in a folder, and whether each is a folder."""
  for entry in epath.Path(path).iterdir():
    # Asking a remote store whether an entry is a folder costs a round trip, so
    # an entry with an image suffix passes for a file.
    is_file = entry.name.lower().endswith(SUFFIXES)
    yield entry.name, not is_file and entry.is_dir()


def _local(path: str) -> Iterator[tuple[str, bool]]:
  with os.scandir(path) as scan:
    for entry in scan:
      # Almost all entries are files: avoid further system calls. A broken link
      # passes for a file, which a read then reports as missing.
      yield entry.name, not entry.is_file() and entry.is_dir()


def warn(spec: str, others: collections.Counter) -> None:
  """Logs what is not read: a suffix, or what else it is -> number of files."""
  if others:
    logging.warning(
      '%s: %s file(s) are not read, by suffix: %s. The suffixes of images are:'
      ' %s.',
      *(printable.name(spec), f'{others.total():,}'),
      ', '.join(f'{k} {n:,}' for k, n in others.most_common(10)),
      ' '.join(SUFFIXES),
    )


class Names(Sequence):
  """Names of files in a fixed order, which take as much memory as letters.

  Attributes:
    letters: all names one after the other, uint8.
    ends: where each ends, int64 [files].
  """

  def __init__(self, names: Iterable[str]):
    letters, ends = bytearray(), array.array('q')
    for name in names:
      letters += os.fsencode(name)
      ends.append(len(letters))
    self.letters = np.frombuffer(bytes(letters), np.uint8)
    self.ends = np.array(ends, np.int64)

  def __len__(self) -> int:
    return len(self.ends)

  def __getitem__(self, row: int) -> str:
    begin = int(self.ends[row - 1]) if row else 0
    return os.fsdecode(self.letters[begin : int(self.ends[row])].tobytes())
