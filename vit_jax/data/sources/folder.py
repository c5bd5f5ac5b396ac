"""`folder:PATH`: image files in class folders, with or without splits.

These are PATH/SPLIT/CLASS/*.jpg, or PATH/CLASS/*.jpg, which are all `train`.
`classes:PATH` takes every folder in PATH for a class.
"""

import collections
import hashlib
import operator
import os
import time
from collections.abc import Iterator
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
# A list of more folders is not kept, as every start would compare their times.
_MOST_FOLDERS = 200_000
# A folder that changed less than this before it was listed may change again
# within the resolution of the file system's clock.
_SETTLED_NS = 2 * 10**9


class _Walk:
  """Lists a tree of class folders.

  Attributes:
    times: folder -> time of its last change in ns; empty for a remote tree.
    others: suffix -> number of files that are no images. Pipes, sockets and
      devices are listed by their path, and images outside of class folders by
      their place.
    flat: whether the folders in the root are classes.
  """

  def __init__(self):
    self.flat = True
    self.times: dict[str, int] = {}
    self.others = collections.Counter()

  def look(self, path: str) -> tuple[list[str], list[str], collections.Counter]:
    """Returns the folders in a folder, the images, and other files."""
    if not listing.is_remote(path):
      self.times[path] = os.stat(path).st_mtime_ns
    folders, images, others = [], [], collections.Counter()
    for name, is_folder in listing.entries(path):
      if is_folder:
        folders.append(name)
      elif is_folder is None:
        others[printable.name(f'{path}/{name} (no regular file)')] += 1
      elif name.lower().endswith(listing.SUFFIXES):
        images.append(name)
      else:
        others[os.path.splitext(name)[1].lower() or 'no suffix'] += 1
    return sorted(folders), images, others

  def files(self, path: str, listed=None, prefix: str = '') -> Iterator[str]:
    """Yields the paths of all images below a folder, relative to it.

    Args:
      path: the folder.
      listed: what `look` returned for it, if that was called before.
      prefix: put before each path.
    """
    folders, images, others = listed or self.look(path)
    self.others.update(others)
    for name in images:
      yield prefix + name
    for name in folders:
      yield from self.files(f'{path}/{name}', None, f'{prefix}{name}/')

  def tree(self, root: str, split: str) -> dict[str, dict[str, list[str]]]:
    """Returns split -> class -> sorted paths inside the class folder.

    Args:
      root: the folder.
      split: the name of the only split, whose classes are all folders in the
        root; '' finds out whether these are splits, or the classes of `train`.
    """
    top, images, _ = self.look(root)
    inside = {name: self.look(f'{root}/{name}') for name in top}
    self._note_outside(root, images if top else [])
    if split:
      return {split: self._classes(root, inside)}
    with_images = [
      n for n in top if inside[n][1] and n.lower() not in listing.SPLITS
    ]
    # Either the images or the folders of images may be there by mistake.
    mixed = {n for n in with_images if self._holds(f'{root}/{n}', inside[n][0])}
    # Folders that hold images are classes, and the others then must be, too.
    if len(mixed) < len(with_images):
      classes = self._classes(root, inside)
      for name, found in classes.items():
        is_split = name.lower() in listing.SPLITS and name.lower() != 'train'
        if found and (is_split or all('/' in file for file in found)):
          raise _layout_error(
            root,
            f'{root}/{name} looks like a split, but other folders hold images',
          )
      return {'train': classes}
    self.flat, tree = False, {}
    for name in top:
      path, (folders, images, _) = f'{root}/{name}', inside[name]
      self._note_outside(path, images)
      classes = self._classes(path, dict.fromkeys(folders))
      if any(classes.values()):
        tree[name] = classes
    if mixed and mixed.issuperset(tree):
      unclear = f'{root}/{min(mixed)} holds images and folders of images'
      raise _layout_error(root, unclear)
    return tree

  def _holds(self, path: str, folders: list[str]) -> bool:
    """Returns whether some folder of a folder holds an image."""
    others = self.others.copy()
    found = any(any(self.files(f'{path}/{name}')) for name in folders)
    self.others = others  # They are counted when the images are listed.
    return found

  def _classes(self, path: str, listed: dict) -> dict[str, list[str]]:
    return {
      name: sorted(self.files(f'{path}/{name}', found))
      for name, found in listed.items()
    }

  def _note_outside(self, path: str, images: list[str]) -> None:
    if images:
      place = f'images of {printable.name(path)} outside of class folders'
      self.others[place] = len(images)


def _layout_error(root: str, found: str) -> ValueError:
  return ValueError(
    f'expected {root}/CLASS/IMAGE or {root}/SPLIT/CLASS/IMAGE, such as'
    f' {root}/cat/1.jpg or {root}/train/cat/1.jpg (suffixes:'
    f' {", ".join(listing.SUFFIXES)}), but {printable.name(found)}. Put the'
    ' images of each class into a folder of their own, and move other folders'
    f' out of {root}. classes:{root} takes each folder in {root} for a class,'
    ' with all images below it.'
  )


def _list(root: str, split: str) -> tuple[listing.Index, bool]:
  """Lists the files of ROOT/SPLIT/CLASS or ROOT/CLASS.

  Args:
    root: a folder, local or remote (`gs://`).
    split: see `_Walk.tree`.

  Returns:
    The paths inside the class folders, by split, class and path; and whether
    this list may be kept. The facts: sorted `class_names`; `counts`, split ->
    number of files of each class; `flat`, whether there are no folders of
    splits; and `others`, see `_Walk`.

  Raises:
    ValueError: the folder is not laid out as described.
  """
  started, walk = time.time_ns(), _Walk()
  tree = walk.tree(root, split)
  if not any(files for of in tree.values() for files in of.values()):
    others = dict(walk.others) or 'nothing'
    raise _layout_error(root, f'no class folder holds an image ({others})')
  class_names = sorted(set().union(*tree.values()))
  facts = {
    'class_names': class_names,
    'counts': {
      split: [len(classes.get(name, ())) for name in class_names]
      for split, classes in tree.items()
    },
    'flat': walk.flat,
    'others': dict(walk.others),
    'folders': walk.times,
  }
  names = (
    file
    for classes in tree.values()
    for name in class_names
    for file in classes.get(name, ())
  )
  settled = max(walk.times.values(), default=0) <= started - _SETTLED_NS
  return listing.Index(facts, listing.encoded(names)), (
    settled and len(walk.times) <= _MOST_FOLDERS
  )


def _read(root: str, split: str) -> listing.Index:
  """Lists a tree, or loads a kept list; see `_list`."""
  if listing.is_remote(root):
    return _list(root, split)[0]
  root = os.path.abspath(root)
  return listing.kept(
    'folders', f'{root}\0{split}', _is_unchanged, lambda: _list(root, split)
  )


def _is_unchanged(facts: dict) -> bool:
  """Returns whether no folder has changed since it was listed."""
  folders = facts['folders']
  # In parallel, since each may be a round trip to a file server.
  with futures.ThreadPoolExecutor(16) as pool:
    times = pool.map(lambda path: os.stat(path).st_mtime_ns, folders)
    return all(map(operator.eq, times, folders.values()))


class Folder(source.Source):
  """Encoded images from a tree of folders, local or remote (`gs://`).

  The classes are the sorted names of the class folders of all splits, so a
  split that lacks a class still uses the same labels. Records are sorted by
  class, then by path inside the class folder, including sub-folders. Hidden
  files and folders are ignored. Other suffixes are skipped and counted.

  """

  sorted_by_class = True
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
      self._index = _read(self._root, self._SPLIT)
    except ValueError as error:
      raise ValueError(f'{printable.name(spec)}: {error}') from error
    facts = self._index.facts
    # Split -> where the files of each class end, counted from the first split.
    self._class_ends, end = {}, 0
    for split, counts in facts['counts'].items():
      self._class_ends[split] = end + np.cumsum(counts)
      end += sum(counts)
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: sum(of) for split, of in facts['counts'].items()},
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
    counts = self._index.facts['counts'][split]
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
    counts = self._index.facts['counts'][split]
    hashed.update(np.array(counts, np.int64))
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
