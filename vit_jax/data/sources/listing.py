"""Lists the image files of a tree of class folders.

A kept list (`index`) is used again as long as no folder has changed.
"""

import collections
import operator
import os
import time
from collections.abc import Iterator
from concurrent import futures

import numpy as np
from etils import epath

from vit_jax.data.sources import index
from vit_jax.data.sources.index import Index
from vit_jax.runtime import printable

# The formats that OpenCV's wheels decode.
SUFFIXES = (
  *('.jpg', '.jpeg', '.jpe', '.png', '.webp', '.bmp', '.dib', '.tif', '.tiff'),
  *('.jp2', '.ppm', '.pgm', '.pbm', '.pnm', '.gif', '.avif'),
)
# A list of more folders is not kept, as every start would compare their times.
_MOST_FOLDERS = 200_000
# A folder that changed less than this before it was listed may change again
# within the resolution of the file system's clock.
_SETTLED_NS = 2 * 10**9
_NONE = b'', ()
# Folders, and ends of the names of shards, that name a split.
SPLITS = ('train', 'validation', 'valid', 'val', 'test')
# Folders that archives and file systems leave beside the images.
_CLUTTER = ('__MACOSX', '$RECYCLE.BIN', 'lost+found')


def read(root: str, split: str = '') -> Index:
  """Lists the files of ROOT/SPLIT/CLASS or ROOT/CLASS, or loads a kept list.

  Args:
    root: a folder, local or remote (`gs://`).
    split: the name of the only split, whose classes are all folders in the
      root; '' finds out whether these are splits, or the classes of `train`.

  Returns:
    The paths inside the class folders, by split, class and path. The facts:
    sorted `class_names`; `counts`, split -> number of files of each class;
    `flat`, whether there are no folders of splits; and `others`, suffix ->
    number of files without an image suffix. Pipes, sockets and devices are
    listed by their path instead of a suffix, and images outside of class
    folders by their place.

  Raises:
    ValueError: the folder is not laid out as described.
  """
  if is_remote(root):
    return _Walk(root, split).index()
  root = os.path.abspath(root)

  def make():
    started = time.time_ns()
    walk = _Walk(root, split)
    settled = max(walk.folders.values()) <= started - _SETTLED_NS
    return walk.index(), settled and len(walk.folders) <= _MOST_FOLDERS

  return index.kept('folders', f'{root}\0{split}', _is_unchanged, make)


def _is_unchanged(facts: dict) -> bool:
  """Returns whether no folder has changed since it was listed."""
  folders = facts['folders']
  # In parallel, since each may be a round trip to a file server.
  with futures.ThreadPoolExecutor(16) as pool:
    times = pool.map(lambda path: os.stat(path).st_mtime_ns, folders)
    return all(map(operator.eq, times, folders.values()))


def is_remote(path: str) -> bool:
  """Returns whether a path is in a remote store such as `gs://`."""
  return '://' in path


class _Walk:
  """Lists a tree.

  Attributes:
    folders: folder -> time of its last change in ns; empty for a remote tree.
  """

  def __init__(self, root: str, split: str):
    self._root = root
    self._split = split
    self._remote = is_remote(root)
    self.folders: dict[str, int] = {}
    self._found = self._walk()

  def index(self) -> Index:
    class_names, tree, others = self._found
    ordered = [
      classes[name]
      for classes in tree.values()
      for name in class_names
      if name in classes
    ]
    lengths = np.concatenate([lengths for _, lengths in ordered])
    facts = {
      'class_names': class_names,
      'counts': {
        split: [len(classes.get(name, _NONE)[1]) for name in class_names]
        for split, classes in tree.items()
      },
      'flat': bool(self._split),
      'others': dict(others),
      'folders': self.folders,
    }
    names = np.frombuffer(b''.join(names for names, _ in ordered), np.uint8)
    return Index(facts, {'names': names, 'ends': np.cumsum(lengths)})

  def _walk(self):
    """Returns the class names, split -> class -> files, and other files."""
    root, detect = self._root, not self._split
    folders, images = self._list(root)
    if detect and self._are_classes(folders):
      self._split = 'train'
    # split -> class -> (encoded paths, their lengths)
    tree, others = {}, collections.Counter()
    if images and folders:
      others[_outside(root)] = images
    if self._split and folders:
      tree[self._split] = self._walk_classes(root, folders, others, detect)
    for split in () if self._split else folders:
      if classes := self._walk_split(split, others):
        tree[split] = classes
    if not tree:
      found = f'folders {folders[:5]} without any image in a class folder'
      raise self._layout_error(
        root, found if folders else f'{images} images and no folders'
      )
    return sorted(set().union(*tree.values())), tree, others

  def _are_classes(self, folders: list[str]) -> bool:
    """Returns whether the folders in the root are classes, not splits.

    The first folder that tells it decides. The walk checks the others.
    """
    unclear = ''
    for name in folders:
      path = f'{self._root}/{name}'
      first = self._first(path)
      if '/' in first:
        return False
      if not first:
        continue
      has_folders = any(self._first(f'{path}/{n}') for n in self._list(path)[0])
      is_split = name.lower() in SPLITS
      if has_folders == is_split:
        return not is_split
      # A split without classes tells nothing.
      unclear = unclear or ('' if is_split else path)
    if unclear:
      raise self._layout_error(unclear, 'images and folders of images')
    return False

  def _first(self, path: str) -> str:
    """Returns the first image that is found below a folder, or ''."""
    return next(self._files(path, '', collections.Counter()), '')

  def _walk_split(
    self, split: str, others: collections.Counter
  ) -> dict[str, tuple[bytes, np.ndarray]]:
    """Returns the files of each class; {} if the folder is not a split."""
    path = f'{self._root}/{split}'
    folders, images = self._list(path)
    if images:
      others[_outside(path)] = images
    if folders:
      return self._walk_classes(path, folders, others)
    if images and split.lower() not in SPLITS:
      raise self._layout_error(
        path, 'images, as a class does, but other folders hold class folders'
      )
    return {}  # A split without labels, or other things such as lists.

  def _walk_classes(
    self,
    path: str,
    folders: list[str],
    others: collections.Counter,
    detected: bool = False,
  ) -> dict[str, tuple[bytes, np.ndarray]]:
    classes = {}
    for name in folders:
      files = sorted(self._files(f'{path}/{name}', '', others))
      if detected and files:
        self._check_class(name, files)
      encoded = [os.fsencode(file) for file in files]
      lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
      classes[name] = b''.join(encoded), lengths
    if not any(len(lengths) for _, lengths in classes.values()):
      found = dict(others) or 'nothing'
      raise self._layout_error(
        path, f'folders {folders[:5]} without any image ({found})'
      )
    return classes

  def _check_class(self, name: str, files: list[str]) -> None:
    """Raises ValueError if a folder beside classes is rather a split."""
    found = ''
    if all('/' in file for file in files):
      found = 'class folders, as a split does, but other folders hold images'
    elif name.lower() in {*SPLITS} - {'train'}:  # A class of vehicles.
      found = 'images, but no class folders, though it is called like a split'
    if found:
      raise self._layout_error(f'{self._root}/{name}', found)

  def _layout_error(self, path: str, found: str) -> ValueError:
    root = self._root
    advice = 'Put the images of each class into a folder of their own.'
    if path != root:
      advice += (
        f' If {printable.name(path)} is not a part of the data, such as what a'
        f' command has written, move it out of {root}. classes:{root} takes'
        f' each folder in {root} for a class, with all images below it.'
      )
    return ValueError(
      f'expected {root}/CLASS/IMAGE or {root}/SPLIT/CLASS/IMAGE, such as'
      f' {root}/cat/1.jpg or {root}/train/cat/1.jpg (suffixes:'
      f' {", ".join(SUFFIXES)}), but {printable.name(path)} holds {found}.'
      f' {advice}'
    )

  def _files(
    self, path: str, prefix: str, others: collections.Counter
  ) -> Iterator[str]:
    """Yields all images below a folder, as paths inside the class folder."""
    folders = []
    for name, is_folder in self._entries(path):
      if is_folder:
        folders.append(name)
      elif is_folder is None:
        others[printable.name(f'{path}/{name} (no regular file)')] += 1
      elif name.lower().endswith(SUFFIXES):
        yield prefix + name
      else:
        others[os.path.splitext(name)[1].lower() or 'no suffix'] += 1
    for name in folders:
      yield from self._files(f'{path}/{name}', f'{prefix}{name}/', others)

  def _list(self, path: str) -> tuple[list[str], int]:
    """Returns the sorted folders, and the number of images beside them."""
    entries = list(self._entries(path))
    images = sum(
      not is_folder and name.lower().endswith(SUFFIXES)
      for name, is_folder in entries
    )
    return sorted(name for name, is_folder in entries if is_folder), images

  def _entries(self, path: str) -> Iterator[tuple[str, bool | None]]:
    if not self._remote:
      self.folders[path] = os.stat(path).st_mtime_ns
    return entries(path)


def _outside(path: str) -> str:
  return f'images of {printable.name(path)} outside of class folders'


def entries(path: str) -> Iterator[tuple[str, bool | None]]:
  """Yields the names in a folder, without hidden ones, and their kinds.

  The kind is True for a folder and False for a file. It is None for a pipe, a
  socket or a device, which must not be opened because a read would block.

  Raises:
    ValueError: a link leads to a folder that it lies in.
    OSError: a link leads back to itself, or the folder is gone.
  """
  if is_remote(path):
    # Asking a remote store whether an entry is a folder costs a round trip, so
    # an entry with an image suffix passes for a file.
    found = (
      (p.name, not p.name.lower().endswith(SUFFIXES) and p.is_dir())
      for p in epath.Path(path).iterdir()
    )
  else:
    found = _scan(path)
  for name, is_folder in found:
    if not name.startswith('.') and name not in _CLUTTER:
      yield name, is_folder


def _scan(path: str) -> Iterator[tuple[str, bool | None]]:
  with os.scandir(path) as scan:
    for entry in scan:
      if entry.is_file():  # Almost all entries: avoid further system calls.
        yield entry.name, False
        continue
      is_folder = entry.is_dir()
      if is_folder and entry.is_symlink():
        inside = os.path.join(os.path.realpath(path), '')
        if inside.startswith(os.path.join(os.path.realpath(entry.path), '')):
          raise ValueError(
            f'{printable.name(entry.path)} links to a folder that it lies in;'
            ' remove it.'
          )
      # A broken link passes for a file, which a read then reports as missing.
      is_other = not is_folder and os.path.exists(entry)
      yield entry.name, None if is_other else is_folder
