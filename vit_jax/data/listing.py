"""Lists the image files of a tree of class folders.

One array of bytes holds all names, so that 14 million names take about as much
memory as they have letters. A list of many files is kept on disk and mapped
into memory, which the processes of a machine share. It is used again as long as
no folder has changed.
"""

import collections
import dataclasses
import errno
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent import futures

import numpy as np
from absl import logging
from etils import epath

from vit_jax.runtime import json_text, printable

# The formats that OpenCV's wheels decode.
SUFFIXES = (
  *('.jpg', '.jpeg', '.jpe', '.png', '.webp', '.bmp', '.dib', '.tif', '.tiff'),
  *('.jp2', '.ppm', '.pgm', '.pbm', '.pnm', '.gif', '.avif'),
)
# A list of fewer files is not kept, since making it takes less than a second.
_KEPT_FROM = 50_000
# A list of more folders is not kept, as every start would compare their times.
_MOST_FOLDERS = 200_000
# A folder that changed less than this before it was listed may change again
# within the resolution of the file system's clock.
_SETTLED_NS = 2 * 10**9
# Version of the files on disk.
_FORMAT = 2
# Folders, and ends of the names of shards, that name a split.
SPLITS = ('train', 'validation', 'valid', 'val', 'test')
# Folders that archives and file systems leave beside the images.
_CLUTTER = ('__MACOSX', '$RECYCLE.BIN', 'lost+found')


@dataclasses.dataclass(frozen=True)
class Listing:
  """Files sorted by split, class and path inside the class folder.

  Attributes:
    class_names: sorted names of the classes of all splits.
    counts: split -> number of files of each class, int64 [classes].
    others: split -> suffix -> number of files without an image suffix. Pipes,
      sockets and devices are listed by their path instead of a suffix, and
      images outside of class folders by their place.
    names: all paths inside the class folders, concatenated, uint8.
    ends: where each path ends in `names`, int64 [files].
    flat: whether there are no folders of splits, only ROOT/CLASS.
    kept: the folder that holds `names` and `ends`, '' if they are not kept.
    digest: a digest of the whole list, '' if it is not kept.
  """

  class_names: tuple[str, ...]
  counts: Mapping[str, np.ndarray]
  others: Mapping[str, Mapping[str, int]]
  names: np.ndarray = dataclasses.field(repr=False)
  ends: np.ndarray = dataclasses.field(repr=False)
  flat: bool = False
  kept: str = ''
  digest: str = ''

  @functools.cached_property
  def _starts(self) -> dict[str, int]:
    """Split -> number of files before it."""
    sizes = [0, *(int(c.sum()) for c in self.counts.values())]
    return dict(zip(self.counts, np.cumsum(sizes).tolist(), strict=False))

  @functools.cached_property
  def _class_ends(self) -> dict[str, np.ndarray]:
    return {split: np.cumsum(c) for split, c in self.counts.items()}

  def label(self, split: str, index: int) -> int:
    """Returns the class of file `index` of a split."""
    ends = self._class_ends[split]
    return int(np.searchsorted(ends, index, side='right'))

  def path(self, split: str, index: int) -> str:
    """Returns the file's path inside the root: `train/cat/1.jpg`."""
    row = self._starts[split] + index
    start = int(self.ends[row - 1]) if row else 0
    name = os.fsdecode(self.names[start : int(self.ends[row])].tobytes())
    path = f'{self.class_names[self.label(split, index)]}/{name}'
    return path if self.flat else f'{split}/{path}'

  def digest_of(self, split: str) -> str:
    """Returns a digest of a split's classes and the paths of its files."""
    counts, starts = self.counts[split], self._starts
    rows = slice(starts[split], starts[split] + int(counts.sum()))
    ends = self.ends[rows]
    before = int(self.ends[rows.start - 1]) if rows.start else 0
    hashed = hashlib.sha256(repr(self.class_names).encode(errors='replace'))
    hashed.update(counts)
    hashed.update(ends - before)
    hashed.update(self.names[before : int(ends[-1])])
    return hashed.hexdigest()[:16]

  def __reduce__(self):
    # Pickling would copy mapped arrays, so the other process maps them itself.
    if self.kept:
      return _load, (self.kept, self.digest)
    return Listing, tuple(
      getattr(self, field.name) for field in dataclasses.fields(self)
    )


def read(root: str, split: str = '') -> Listing:
  """Lists the files of ROOT/SPLIT/CLASS or ROOT/CLASS, or loads a kept list.

  Args:
    root: a folder, local or remote (`gs://`).
    split: the name of the only split, whose classes are all folders in the
      root; '' finds out whether these are splits, or the classes of `train`.

  Raises:
    ValueError: the folder is not laid out as described.
  """
  if is_remote(root):
    return _Walk(root, split).listing
  root = os.path.abspath(root)
  place = _place(root, split)
  if kept := _load_if_unchanged(place, root):
    return kept
  started = time.time_ns()
  walk = _Walk(root, split)
  listing = walk.listing
  newest = max(walk.folders.values(), default=0)
  if (
    len(listing.ends) < _KEPT_FROM
    or len(walk.folders) > _MOST_FOLDERS
    or newest > started - _SETTLED_NS
  ):
    return listing
  try:
    return _keep(listing, walk.folders, root, place)
  except OSError as error:
    logging.warning(
      'The list of the %d files in %s cannot be kept in %s, so every start'
      ' lists them again: %s. Set XDG_CACHE_HOME to another folder.',
      *(len(listing.ends), root, place, error.strerror),
    )
    return listing


def is_remote(path: str) -> bool:
  """Returns whether a path is in a remote store such as `gs://`."""
  return '://' in path


class _Walk:
  """Lists a tree.

  Attributes:
    listing: the list of the files.
    folders: folder -> time of its last change in ns; empty for a remote tree.
  """

  def __init__(self, root: str, split: str):
    self._root = root
    self._split = split
    self._remote = is_remote(root)
    self.folders: dict[str, int] = {}
    self.listing = self._walk()

  def _walk(self) -> Listing:
    root, detect = self._root, not self._split
    folders, images = self._list(root)
    if detect and self._are_classes(folders):
      self._split = 'train'
    # split -> class -> (encoded paths, their lengths)
    tree, others = {}, collections.defaultdict(collections.Counter)
    if images and folders:
      others[''][_outside(root)] = images
    if self._split and folders:
      tree[self._split] = self._walk_classes(
        root, folders, others[self._split], detect
      )
    for split in () if self._split else folders:
      if classes := self._walk_split(split, others[split]):
        tree[split] = classes
    if not tree:
      found = f'folders {folders[:5]} without any image in a class folder'
      raise self._layout_error(
        root, found if folders else f'{images} images and no folders'
      )
    class_names = sorted(set().union(*tree.values()))
    ordered = [
      classes[name]
      for classes in tree.values()
      for name in class_names
      if name in classes
    ]
    lengths = np.concatenate([lengths for _, lengths in ordered])
    return Listing(
      class_names=tuple(class_names),
      counts={
        split: np.array(
          [len(classes[n][1]) if n in classes else 0 for n in class_names],
          np.int64,
        )
        for split, classes in tree.items()
      },
      others={split: dict(of) for split, of in others.items()},
      names=np.frombuffer(b''.join(names for names, _ in ordered), np.uint8),
      ends=np.cumsum(lengths),
      flat=bool(self._split),
    )

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
    ValueError: a link leads to a folder that contains the link.
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
      try:
        if entry.is_file():  # Almost all entries: avoid further system calls.
          yield entry.name, False
          continue
        is_folder = entry.is_dir()
        endless = is_folder and entry.is_symlink() and _leads_up(entry, path)
      except OSError as error:
        if error.errno != errno.ELOOP:
          raise
        endless = True
      if endless:
        raise ValueError(
          f'{printable.name(entry.path)} is a symbolic link that leads back to'
          ' itself, so its files have no end. Remove the link.'
        )
      # A broken link passes for a file, which a read then reports as missing.
      is_other = not is_folder and os.path.exists(entry)
      yield entry.name, None if is_other else is_folder


def _leads_up(entry: os.DirEntry, path: str) -> bool:
  """Returns whether a linked folder is `path` or a parent of it."""
  while not os.path.samestat(entry.stat(), os.stat(path)):
    path, below = os.path.dirname(path), path
    if path == below:
      return False
  return True


# Lists on disk ----------------------------------------------------------------


def _place(root: str, split: str) -> str:
  """Returns the folder for the kept list of a tree."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  tree = f'{root}\0{split}'
  digest = hashlib.sha256(os.fsencode(tree)).hexdigest()
  return os.path.join(cache, 'vit_jax', 'folders', digest[:16])


def _keep(
  listing: Listing, folders: Mapping[str, int], root: str, place: str
) -> Listing:
  """Writes a list atomically, and returns it loaded from there."""
  os.makedirs(os.path.dirname(place), exist_ok=True)
  temporary = tempfile.mkdtemp(prefix=place + '.')
  try:
    np.save(f'{temporary}/names.npy', listing.names)
    np.save(f'{temporary}/ends.npy', listing.ends)
    facts = dict(
      format=_FORMAT,
      digest=_digest(listing),
      root=root,
      folders=folders,
      class_names=listing.class_names,
      counts={k: v.tolist() for k, v in listing.counts.items()},
      others=listing.others,
      flat=listing.flat,
    )
    with open(f'{temporary}/facts.json', 'w', encoding='utf-8') as f:
      json.dump(facts, f)
    # Another process may have kept the list of the same tree and use it now.
    if kept := _load_if_unchanged(place, root):
      return kept
    shutil.rmtree(place, ignore_errors=True)
    try:
      os.rename(temporary, place)
    except OSError:
      # Another process was faster, and its list describes the same tree.
      if not os.path.exists(f'{place}/facts.json'):
        raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return _load(place)


def _digest(listing: Listing) -> str:
  """Returns a digest that is equal for equal lists, whichever process asks."""
  digest = hashlib.sha256(repr(listing.class_names).encode(errors='replace'))
  counts = [(k, v.tolist()) for k, v in listing.counts.items()]
  digest.update(repr(counts).encode(errors='replace'))
  digest.update(np.ascontiguousarray(listing.ends))
  digest.update(np.ascontiguousarray(listing.names))
  return digest.hexdigest()


def _load(place: str, digest: str = '') -> Listing:
  """Loads a kept list.

  Raises:
    ValueError: the list does not have the given digest, since another run has
      listed the changed folder meanwhile.
  """
  with open(f'{place}/facts.json', encoding='utf-8') as f:
    facts = json_text.loads(f.read())
  if digest and facts['digest'] != digest:
    raise ValueError(
      f'The images in {facts["root"]} have changed since this run began, and'
      ' another run has listed them again. Restart this run.'
    )
  return _from_facts(place, facts)


def _from_facts(place: str, facts: dict) -> Listing:
  return Listing(
    class_names=tuple(facts['class_names']),
    counts={k: np.array(v, np.int64) for k, v in facts['counts'].items()},
    others=facts['others'],
    names=np.load(f'{place}/names.npy', mmap_mode='r'),
    ends=np.load(f'{place}/ends.npy', mmap_mode='r'),
    flat=facts['flat'],
    kept=place,
    digest=facts['digest'],
  )


def _load_if_unchanged(place: str, root: str) -> Listing | None:
  """Loads a kept list; None if there is none or a folder has changed."""
  try:
    with open(f'{place}/facts.json', encoding='utf-8') as f:
      facts = json_text.loads(f.read())
    if (facts['format'], facts['root']) != (_FORMAT, root):
      return None
    # In parallel, since each may be a round trip to a file server.
    with futures.ThreadPoolExecutor(16) as pool:
      times = pool.map(_time, facts['folders'], chunksize=256)
      if list(times) != list(facts['folders'].values()):
        return None
    listing = _from_facts(place, facts)
  except (OSError, ValueError, KeyError):  # The list is missing or damaged.
    return None
  return listing if len(listing.names) == listing.ends[-1] else None


def _time(folder: str) -> int:
  try:
    return os.stat(folder).st_mtime_ns
  except OSError:
    return -1
