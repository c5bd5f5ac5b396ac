"""`folder:PATH`: image files in class folders, with or without splits.

These are PATH/SPLIT/CLASS/*.jpg, or PATH/CLASS/*.jpg, which are all `train`.
`classes:PATH` takes every folder in PATH for a class.
"""

import collections
import hashlib
import os
from concurrent import futures

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import listing
from vit_jax.runtime import printable
from vit_jax.workdir import files

# The most files whose sizes are looked up in all, and per task of a thread.
_SIZES = 65_536
_BLOCK = 512


class Folder(source.Source):
  """Encoded images from a tree of folders, local or remote (`gs://`).

  The classes are the sorted names of the class folders of all splits, so a
  split that lacks a class still uses the same labels. Records are sorted by
  class, then by path inside the class folder, including sub-folders. Hidden
  files and folders are ignored. Other suffixes are skipped and counted.

  Attributes:
    class_counts: split -> number of images of each class, int64 [classes].
    others: suffix -> number of files that are not read.
  """

  _KIND = 'folder'
  _SPLIT = ''  # The only split; '' finds out whether there are splits.

  def __init__(self, path: str):
    """Lists the files, or loads a kept list; opens no image.

    Args:
      path: the folder that holds one folder per split, or per class.

    Raises:
      ValueError: `path` is not a folder, or not laid out as described.
    """
    spec = f'{self._KIND}:{path}'
    self._root = os.path.expanduser(path)
    if not epath.Path(self._root).is_dir():
      raise ValueError(f'{spec}: there is no folder {self._root}.')
    try:
      self._index = listing.read(self._root, self._SPLIT)
    except ValueError as error:
      raise ValueError(f'{printable.name(spec)}: {error}') from error
    facts = self._index.facts
    self.class_counts = {
      split: np.array(counts, np.int64)
      for split, counts in facts['counts'].items()
    }
    # Split -> where the files of each class end, counted from the first split.
    self._class_ends, end = {}, 0
    for split, counts in self.class_counts.items():
      self._class_ends[split] = end + np.cumsum(counts)
      end += int(counts.sum())
    self.info = source.SourceInfo(
      spec=spec,
      splits={
        split: int(counts.sum()) for split, counts in self.class_counts.items()
      },
      class_names=tuple(facts['class_names']),
      is_remote=listing.is_remote(self._root),
    )
    self.others = collections.Counter(facts['others'])
    if self.others:
      logging.warning(
        '%s: %s file(s) are not read, by suffix: %s. The suffixes of images'
        ' are: %s.',
        *(self.info.spec, f'{self.others.total():,}'),
        ', '.join(f'{k} {n:,}' for k, n in self.others.most_common(10)),
        ' '.join(listing.SUFFIXES),
      )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; the record's name is the file's path."""
    path = self._path(split, index)
    if listing.is_remote(path):
      image = epath.Path(path).read_bytes()
    else:
      with open(path, 'rb', opener=files.open_regular) as f:
        image = f.read()
    return source.Record(image, self.label(split, index), path)

  def _row(self, split: str, index: int) -> int:
    """Returns the place of a file in the index."""
    return int(self._class_ends[split][-1]) - self.info.splits[split] + index

  def _path(self, split: str, index: int) -> str:
    facts = self._index.facts
    folders = [] if facts['flat'] else [split]
    folders.append(facts['class_names'][self.label(split, index)])
    name = self._index.name(self._row(split, index))
    return '/'.join([self._root.rstrip('/'), *folders, name])

  def name(self, split: str, index: int) -> str:
    """Returns the file's path as `read` does, without a read."""
    return printable.name(self._path(split, index))

  def label(self, split: str, index: int) -> int:
    """Returns the label, known from the folder's name without a read."""
    row = self._row(split, index)
    return int(np.searchsorted(self._class_ends[split], row, side='right'))

  def labels(self, split: str) -> np.ndarray:
    """Returns the labels of a whole split, int32 [n], without a read."""
    counts = self.class_counts[split]
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of all names, and of the sizes of up to 65,536 files."""
    return {
      'names of the files': self._names(split),
      'sizes of the files': self._sizes(split),
    }

  def _names(self, split: str) -> str:
    """Returns a digest of a split's classes and the paths of its files."""
    ends = self._index.arrays['ends']
    first, last = self._row(split, 0), int(self._class_ends[split][-1])
    before = int(ends[first - 1]) if first else 0
    names = tuple(self._index.facts['class_names'])
    hashed = hashlib.sha256(repr(names).encode(errors='replace'))
    hashed.update(self.class_counts[split])
    hashed.update(ends[first:last] - before)
    hashed.update(self._index.arrays['names'][before : int(ends[last - 1])])
    return hashed.hexdigest()[:16]

  def _sizes(self, split: str) -> str:
    if listing.is_remote(self._root):
      return identity.UNKNOWN  # Each size would cost a round trip.
    last = self.info.splits[split] - 1
    indices = np.linspace(0, last, min(last + 1, _SIZES)).astype(np.int64)
    # In parallel, since each may be a round trip to a file server.
    blocks = np.array_split(indices, -(-len(indices) // _BLOCK))
    with futures.ThreadPoolExecutor(16) as pool:
      sizes = pool.map(lambda block: self._block_sizes(split, block), blocks)
      try:
        return identity.short_hash(np.concatenate(list(sizes)))
      except OSError:  # A file is gone, or the disk does not answer.
        return identity.UNKNOWN

  def _block_sizes(self, split: str, indices: np.ndarray) -> np.ndarray:
    """Returns the sizes of files in bytes, int64."""
    paths = [self._path(split, index) for index in indices.tolist()]
    return np.array([os.stat(path).st_size for path in paths], np.int64)


class Classes(Folder):
  """All images of a folder of class folders, as the single split `train`."""

  _KIND = 'classes'
  _SPLIT = 'train'
