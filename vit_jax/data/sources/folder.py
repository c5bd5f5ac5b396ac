"""`folder:PATH`: image files in class folders, with or without splits.

These are PATH/SPLIT/CLASS/*.jpg, or PATH/CLASS/*.jpg, which are all `train`.
`classes:PATH` takes every folder in PATH for a class.
"""

import collections
import hashlib
import os
from collections.abc import Mapping
from concurrent import futures

import numpy as np
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import listing
from vit_jax.runtime import errors, printable
from vit_jax.workdir import files

# The most files whose sizes are looked up in all, and per task of a thread.
_SIZES = 65_536
_BLOCK = 512


class Folder(source.Labelled):
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
    """Lists the files; opens no image.

    Args:
      path: the folder that holds one folder per split, or per class.

    Raises:
      ValueError: `path` is not a folder, or not laid out as described.
    """
    spec = f'{self._KIND}:{path}'
    self._root = os.path.expanduser(path).rstrip('/') or '/'
    if not epath.Path(self._root).is_dir():
      raise ValueError(f'{spec}: there is no folder {self._root}.')
    try:
      tree, self._flat, self.others = _read(self._root, self._SPLIT)
    except ValueError as error:
      raise ValueError(f'{printable.name(spec)}: {error}') from error
    names = sorted(set().union(*tree.values()))
    self._labels, self._names = {}, {}
    for split, classes in tree.items():
      paths = [sorted(classes.get(name, ())) for name in names]
      self._labels[split] = np.repeat(
        np.arange(len(names), dtype=np.int32), [*map(len, paths)]
      )
      self._names[split] = listing.Names(p for of in paths for p in of)
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: len(of) for split, of in self._labels.items()},
      class_names=tuple(names),
      is_remote=listing.is_remote(self._root),
    )
    # A class's name as it is on disk; `class_names` are printable.
    self._classes = names
    listing.warn(spec, self.others)

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; the record's name is the file's path."""
    path = self._path(split, index)
    if listing.is_remote(path):
      image = epath.Path(path).read_bytes()
    else:
      with open(path, 'rb', opener=files.open_regular) as f:
        image = f.read()
    return source.Record(image, self.label(split, index), path)

  def _path(self, split: str, index: int) -> str:
    folders = [] if self._flat else [split]
    folders.append(self._classes[self._labels[split][index]])
    name = self._names[split][index]
    return '/'.join([self._root.rstrip('/'), *folders, name])

  def name(self, split: str, index: int) -> str:
    """Returns the file's path as `read` does, without a read."""
    return printable.name(self._path(split, index))

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of all names, and of the sizes of up to 65,536 files."""
    names = self._names[split]
    counts = np.bincount(self._labels[split], minlength=len(self._classes))
    hashed = hashlib.sha256(repr(tuple(self._classes)).encode(errors='replace'))
    for part in (counts.astype(np.int64), names.ends, names.letters):
      hashed.update(part)
    return {
      'names of the files': hashed.hexdigest()[:16],
      'sizes of the files': self._sizes(split),
    }

  def _sizes(self, split: str) -> str:
    if listing.is_remote(self._root):
      return errors.UNKNOWN  # Each size would cost a round trip.
    last = self.info.splits[split] - 1
    indices = np.linspace(0, last, min(last + 1, _SIZES)).astype(np.int64)

    def of_block(block):
      paths = [self._path(split, index) for index in block.tolist()]
      return np.array([os.stat(path).st_size for path in paths], np.int64)

    # In parallel, since each may be a round trip to a file server.
    with futures.ThreadPoolExecutor(16) as pool:
      blocks = np.array_split(indices, -(-len(indices) // _BLOCK))
      try:
        return identity.short_hash(
          np.concatenate([*pool.map(of_block, blocks)])
        )
      except OSError:  # A file is gone, or the disk does not answer.
        return errors.UNKNOWN


class Classes(Folder):
  """All images of a folder of class folders, as the single split `train`."""

  _KIND = 'classes'
  _SPLIT = 'train'


_Tree = Mapping[str, Mapping[str, list[str]]]


def _read(root: str, split: str) -> tuple[_Tree, bool, collections.Counter]:
  """Lists the images of ROOT/SPLIT/CLASS or ROOT/CLASS.

  Args:
    root: a folder, local or remote (`gs://`).
    split: the name of the only split, whose classes are all folders in the
      root; '' finds out whether these are splits, or the classes of `train`.

  Returns:
    Split -> class -> paths inside the class folder; whether the folders in the
    root are classes; and what is not read -> number of files: other suffixes,
    and images outside of class folders.

  Raises:
    ValueError: the folder is not laid out as described.
  """
  found, left = {}, {}  # Folder -> images in it, and other files.
  for folder, names in listing.walk(root):
    found[folder] = [n for n in names if n.lower().endswith(listing.SUFFIXES)]
    left[folder] = set(names).difference(found[folder])
  flat = bool(split) or _holds_classes(root, found)
  tree = collections.defaultdict(lambda: collections.defaultdict(list))
  others = collections.Counter()
  for folder, names in found.items():
    *place, inside = folder.split('/', 1 if flat else 2)
    if len(place) == (1 if flat else 2):
      split_name, name = ([split or 'train'] if flat else []) + place
      tree[split_name][name] += [inside + file for file in names]
      others.update(
        os.path.splitext(name)[1].lower() or 'no suffix'
        for name in left[folder]
      )
    elif names:
      where = printable.name(f'{root}/{folder}'.rstrip('/'))
      others[f'images of {where} outside of class folders'] = len(names)
  kept = {name: tree[name] for name in sorted(tree) if any(tree[name].values())}
  if not kept:
    listed = dict(others) or 'nothing'
    raise _layout_error(root, f'no class folder holds an image ({listed})')
  return kept, flat, others


def _holds_classes(root: str, found: Mapping[str, list[str]]) -> bool:
  """Returns whether the folders in a root are classes, and not splits.

  Args:
    root: the root, for error messages.
    found: folder below the root, as `listing.walk` yields it -> its images.
  """
  shallow, deep = set(), set()  # Folders with images, in or below them.
  for folder, names in found.items():
    top, _, inside = folder.partition('/')
    if names and top:
      (deep if inside else shallow).add(top)
  named = {top for top in shallow | deep if top.lower() in listing.SPLITS}
  if shallow - deep - named:
    tests = {top for top in named if top.lower() != 'train'}
    if splits := sorted((deep - shallow) | tests):
      raise _layout_error(
        root,
        f'{root}/{splits[0]} looks like a split, but other folders hold images',
      )
    return True
  # Either the images or the folders of images may be there by mistake.
  if shallow - named and not (deep - shallow) | (named & deep):
    unclear = (
      f'{root}/{min(shallow - named)} holds images and folders of images'
    )
    raise _layout_error(root, unclear)
  return False


def _layout_error(root: str, found: str) -> ValueError:
  return ValueError(
    f'expected {root}/CLASS/IMAGE or {root}/SPLIT/CLASS/IMAGE, such as'
    f' {root}/cat/1.jpg or {root}/train/cat/1.jpg (suffixes:'
    f' {", ".join(listing.SUFFIXES)}), but {printable.name(found)}. Put the'
    ' images of each class into a folder of their own, and move other folders'
    f' out of {root}. classes:{root} takes each folder in {root} for a class,'
    ' with all images below it.'
  )
