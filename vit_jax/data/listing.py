"""The image files of a tree of class folders, listed once.

The names lie in one array of bytes, not in a string each, so that 14 million of
them take about as much memory as they have letters. Lists of many files are
kept on disk and mapped into memory, which the processes of a machine share;
they are used again as long as no folder has changed.
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

# What OpenCV's wheels decode.
SUFFIXES = (
  *('.jpg', '.jpeg', '.jpe', '.png', '.webp', '.bmp', '.dib', '.tif', '.tiff'),
  *('.jp2', '.ppm', '.pgm', '.pbm', '.pnm', '.gif', '.avif'),
)
# Lists of fewer files are made anew each time, which takes less than a second.
_KEPT_FROM = 50_000
# Folders whose times are compared, at most.
_MOST_FOLDERS = 200_000
# A folder that changed so shortly before it was listed may have changed again
# within the file system's resolution of time.
_SETTLED_NS = 2 * 10**9
# Of the files on disk; another number is another format.
_FORMAT = 1
# What archives of other systems leave beside the images.
_CLUTTER = ('__MACOSX', '$RECYCLE.BIN', 'lost+found')


@dataclasses.dataclass(frozen=True)
class Listing:
  """Files sorted by split, class and path inside the class folder.

  Attributes:
    class_names: those of all splits, sorted.
    counts: split -> number of files of each class, int64 [classes].
    others: split -> suffix -> number of files that are no images by their name;
      pipes, sockets and devices are there by their path.
    names: all paths inside the class folders, one after the other, uint8.
    ends: where each path ends in `names`, int64 [files].
    kept: the folder that holds `names` and `ends`, '' if none does.
    digest: of all of it.
  """

  class_names: tuple[str, ...]
  counts: Mapping[str, np.ndarray]
  others: Mapping[str, Mapping[str, int]]
  names: np.ndarray = dataclasses.field(repr=False)
  ends: np.ndarray = dataclasses.field(repr=False)
  kept: str = ''
  digest: str = ''

  @functools.cached_property
  def _starts(self) -> dict[str, int]:
    """The number of files before each split."""
    sizes = [0, *(int(c.sum()) for c in self.counts.values())]
    return dict(zip(self.counts, np.cumsum(sizes).tolist(), strict=False))

  @functools.cached_property
  def _class_ends(self) -> dict[str, np.ndarray]:
    return {split: np.cumsum(c) for split, c in self.counts.items()}

  def label(self, split: str, index: int) -> int:
    """The class of file `index` of a split."""
    ends = self._class_ends[split]
    return int(np.searchsorted(ends, index, side='right'))

  def path(self, split: str, index: int) -> str:
    """Its path inside the folder of the split, `cat/1.jpg`."""
    row = self._starts[split] + index
    start = int(self.ends[row - 1]) if row else 0
    name = os.fsdecode(self.names[start : int(self.ends[row])].tobytes())
    return f'{self.class_names[self.label(split, index)]}/{name}'

  def digest_of(self, split: str) -> str:
    """Equal for the same files in the same classes of a split."""
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
    # Mapped arrays would be copied: the other process maps them itself.
    if self.kept:
      return _load, (self.kept, self.digest)
    return Listing, tuple(
      getattr(self, field.name) for field in dataclasses.fields(self)
    )


def read(root: str, split: str = '') -> Listing:
  """Lists the files of ROOT/SPLIT/CLASS, or takes the list that is kept.

  Args:
    root: a folder, local or remote (`gs://`).
    split: if it is ROOT/CLASS, what all of it is called.

  Raises:
    ValueError: it is not laid out as described.
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
      ' lists them anew: %s. XDG_CACHE_HOME names another folder.',
      *(len(listing.ends), root, place, error.strerror),
    )
    return listing


def is_remote(path: str) -> bool:
  """Whether a path is in a store such as `gs://`."""
  return '://' in path


class _Walk:
  """Lists a tree.

  Attributes:
    listing: what was found.
    folders: folder -> time of its last change, in ns, of a local tree.
  """

  def __init__(self, root: str, split: str):
    self._root = root
    self._split = split
    self._remote = is_remote(root)
    self.folders: dict[str, int] = {}
    self.listing = self._walk()

  def _walk(self) -> Listing:
    splits = [self._split]
    if not self._split:
      splits, _, images = self._list(self._root)
      if not splits:
        raise _layout_error(
          self._root, self._root, f'{images} images and no folders'
        )
    # split -> class -> (encoded paths, their lengths)
    tree, others, without = {}, {}, []
    for split in splits:
      others[split] = collections.Counter()
      classes = self._walk_split(split, others[split])
      if classes:
        tree[split] = classes
      else:  # It holds other things, such as lists of classes.
        without.append(split)
    if not tree:
      raise _layout_error(
        self._root, self._root, f'folders {without[:5]} without any image'
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
      others={split: dict(others[split]) for split in tree},
      names=np.frombuffer(b''.join(names for names, _ in ordered), np.uint8),
      ends=np.cumsum(lengths),
    )

  def _walk_split(
    self, split: str, others: collections.Counter
  ) -> dict[str, tuple[bytes, np.ndarray]]:
    """The files of each class; {} of a folder that holds something else."""
    path = self._root if self._split else f'{self._root}/{split}'
    names, rest, images = self._list(path)
    if not names and not images and rest:
      return {}
    if not names:
      raise _layout_error(self._root, path, f'{images} images and no folders')
    classes = {}
    for name in names:
      files = sorted(self._files(f'{path}/{name}', '', others))
      encoded = [os.fsencode(file) for file in files]
      lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
      classes[name] = b''.join(encoded), lengths
    if not any(len(lengths) for _, lengths in classes.values()):
      found = dict(others) or 'nothing'
      raise _layout_error(
        self._root, path, f'folders {names[:5]} without any image ({found})'
      )
    return classes

  def _files(
    self, path: str, prefix: str, others: collections.Counter
  ) -> Iterator[str]:
    """All images below a folder, as paths relative to the class folder."""
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

  def _list(self, path: str) -> tuple[list[str], int, int]:
    """The folders in a folder, sorted; how many other files, and images."""
    entries = list(self._entries(path))
    files = [name for name, is_folder in entries if not is_folder]
    images = sum(name.lower().endswith(SUFFIXES) for name in files)
    folders = sorted(name for name, is_folder in entries if is_folder)
    return folders, len(files) - images, images

  def _entries(self, path: str) -> Iterator[tuple[str, bool | None]]:
    if not self._remote:
      self.folders[path] = os.stat(path).st_mtime_ns
    return entries(path)


def entries(path: str) -> Iterator[tuple[str, bool | None]]:
  """The names in a folder, and which are folders; no hidden ones.

  None is a pipe, a socket or a device, which must not be opened: a read would
  wait without end.

  Raises:
    ValueError: a link leads to a folder that it lies in.
  """
  if is_remote(path):
    # Asking a remote store whether an entry is a folder is a round trip; what
    # is named like an image is taken for one.
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
        if entry.is_file():  # Almost all of them: no more is asked.
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
          ' itself, so its files have no end: remove it.'
        )
      # A link to nothing is taken for a file, which is missed on reading.
      is_other = not is_folder and os.path.exists(entry)
      yield entry.name, None if is_other else is_folder


def _leads_up(entry: os.DirEntry, path: str) -> bool:
  """Whether a linked folder is the one that it was found in, or one above."""
  while not os.path.samestat(entry.stat(), os.stat(path)):
    path, below = os.path.dirname(path), path
    if path == below:
      return False
  return True


def _layout_error(root: str, path: str, found: str) -> ValueError:
  return ValueError(
    f'folder:{root}: expected {root}/SPLIT/CLASS/IMAGE, such as '
    f'{root}/train/cat/1.jpg (suffixes: {", ".join(SUFFIXES)}), but '
    f'{printable.name(path)} '
    f'holds {found}. Put each class into the folder of a split; or if there '
    f'are no splits, only {root}/CLASS/IMAGE, call it classes:{root}: a random '
    'tenth is then held out of training, to measure on.'
  )


# What is kept on disk ---------------------------------------------------------


def _place(root: str, split: str) -> str:
  """The folder for the list of a tree."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  tree = f'{root}\0{split}'
  digest = hashlib.sha256(os.fsencode(tree)).hexdigest()
  return os.path.join(cache, 'vit_jax', 'folders', digest[:16])


def _keep(
  listing: Listing, folders: Mapping[str, int], root: str, place: str
) -> Listing:
  """Writes a list, all of it or nothing, and returns it from there."""
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
    )
    with open(f'{temporary}/facts.json', 'w', encoding='utf-8') as f:
      json.dump(facts, f)
    # Another process, which has listed the same tree, may use what it kept.
    if kept := _load_if_unchanged(place, root):
      return kept
    shutil.rmtree(place, ignore_errors=True)
    try:
      os.rename(temporary, place)
    except OSError:
      # Another process was faster. Its list is of the same tree.
      if not os.path.exists(f'{place}/facts.json'):
        raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return _load(place)


def _digest(listing: Listing) -> str:
  """Equal for equal lists, whoever makes them."""
  digest = hashlib.sha256(repr(listing.class_names).encode(errors='replace'))
  counts = [(k, v.tolist()) for k, v in listing.counts.items()]
  digest.update(repr(counts).encode(errors='replace'))
  digest.update(np.ascontiguousarray(listing.ends))
  digest.update(np.ascontiguousarray(listing.names))
  return digest.hexdigest()


def _load(place: str, digest: str = '') -> Listing:
  """The list that is kept; if a digest is given, that one.

  Raises:
    ValueError: another run has found the folder changed meanwhile.
  """
  with open(f'{place}/facts.json', encoding='utf-8') as f:
    facts = json_text.loads(f.read())
  if digest and facts['digest'] != digest:
    raise ValueError(
      f'The images in {facts["root"]} have changed since this run began, and'
      ' another one has listed them anew: start it again.'
    )
  return _from_facts(place, facts)


def _from_facts(place: str, facts: dict) -> Listing:
  return Listing(
    class_names=tuple(facts['class_names']),
    counts={k: np.array(v, np.int64) for k, v in facts['counts'].items()},
    others=facts['others'],
    names=np.load(f'{place}/names.npy', mmap_mode='r'),
    ends=np.load(f'{place}/ends.npy', mmap_mode='r'),
    kept=place,
    digest=facts['digest'],
  )


def _load_if_unchanged(place: str, root: str) -> Listing | None:
  """The list that is kept, unless there is none or a folder has changed."""
  try:
    with open(f'{place}/facts.json', encoding='utf-8') as f:
      facts = json_text.loads(f.read())
    if (facts['format'], facts['root']) != (_FORMAT, root):
      return None
    # At once, as each may be a round trip to another machine.
    with futures.ThreadPoolExecutor(16) as pool:
      times = pool.map(_time, facts['folders'], chunksize=256)
      if list(times) != list(facts['folders'].values()):
        return None
    listing = _from_facts(place, facts)
  except (OSError, ValueError, KeyError):  # None, or a damaged one.
    return None
  return listing if len(listing.names) == listing.ends[-1] else None


def _time(folder: str) -> int:
  try:
    return os.stat(folder).st_mtime_ns
  except OSError:
    return -1
