"""The names of a data set's files: how they are found, and an index of them.

One array of bytes holds all names, so that 14 million names take about as much
memory as they have letters. An index of many files is kept on disk, in
`$XDG_CACHE_HOME/vit_jax` (`~/.cache/vit_jax`), and mapped into memory, which
the processes of a machine share.
"""

import array
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax.runtime import json_text, printable

# The formats that OpenCV's wheels decode.
SUFFIXES = (
  *('.jpg', '.jpeg', '.jpe', '.png', '.webp', '.bmp', '.dib', '.tif', '.tiff'),
  *('.jp2', '.ppm', '.pgm', '.pbm', '.pnm', '.gif', '.avif'),
)
# Folders, and ends of the names of shards, that name a split.
SPLITS = ('train', 'validation', 'valid', 'val', 'test')
# Folders that archives and file systems leave beside the images.
_CLUTTER = ('__MACOSX', '$RECYCLE.BIN', 'lost+found')
# An index of fewer files is not kept, as making it takes less than a second.
KEPT_FROM = 50_000
# Part of the facts, so that files of other versions are made again.
_FORMAT = 3


def is_remote(path: str) -> bool:
  """Returns whether a path is in a remote store such as `gs://`."""
  return '://' in path


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


def shards(root: str, suffixes: tuple[str, ...]) -> list[str]:
  """Returns a file, or the sorted files below a folder, of some suffixes.

  Raises:
    ValueError: there are none.
  """

  def walk(folder):
    for name, is_folder in entries(folder):
      if is_folder:
        yield from walk(f'{folder}/{name}')
      elif name.lower().endswith(suffixes):
        yield f'{folder}/{name}'

  if root.lower().endswith(suffixes):
    return [root]
  if epath.Path(root).is_dir() and (found := sorted(walk(root))):
    return found
  raise ValueError(
    f'there is no file {root} with the suffix {suffixes[0]}, and no folder'
    f' {root} that holds such files.'
  )


def shard_split(path: str, root: str) -> str:
  """Returns the split that a shard's folders or its name state, or `train`.

  Args:
    path: the shard, such as ROOT/val/0001.tar or ROOT/data/birds-val-0001.tar.
    root: the folder of all shards, or the only shard.
  """
  inside = path[len(root) :].strip('/') or os.path.basename(path)
  for mark in '-_.':
    inside = inside.replace(mark, '/')
  return next((word for word in inside.split('/') if word in SPLITS), 'train')


@dataclasses.dataclass(frozen=True)
class Index:
  """Names of files in a fixed order.

  Attributes:
    facts: JSON-able: what the index describes, and when that changes.
    arrays: `names`, all names one after the other, uint8; `ends`, where each
      ends, int64 [files]; and others that the maker adds.
    place: the folder that holds it, '' if it is not kept.
  """

  facts: dict[str, Any]
  arrays: dict[str, np.ndarray] = dataclasses.field(repr=False)
  place: str = ''

  def __len__(self) -> int:
    return len(self.arrays['ends'])

  def name(self, row: int) -> str:
    """Returns a file's name."""
    begin = int(self.arrays['ends'][row - 1]) if row else 0
    end = int(self.arrays['ends'][row])
    return os.fsdecode(self.arrays['names'][begin:end].tobytes())

  @functools.cached_property
  def _digest(self) -> str:
    facts = json.dumps(self.facts, sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()

  def __reduce__(self):
    # Pickling would copy mapped arrays, so the other process maps them itself.
    if self.place:
      return _load_same, (self.place, self._digest)
    return Index, (self.facts, self.arrays)


def encoded(names: Iterable[str]) -> dict[str, np.ndarray]:
  """Returns the arrays of names."""
  joined, ends = bytearray(), array.array('q')
  for name in names:
    joined += os.fsencode(name)
    ends.append(len(joined))
  return {
    'names': np.frombuffer(bytes(joined), np.uint8),
    'ends': np.array(ends, np.int64),
  }


def kept(
  kind: str,
  key: str,
  is_current: Callable[[dict[str, Any]], bool],
  make: Callable[[], tuple[Index, bool]],
) -> Index:
  """Returns an index that is kept if it is current, else makes it.

  Args:
    kind: what it is of.
    key: which of these.
    is_current: whether facts still hold.
    make: returns the index, and whether it may be kept.
  """
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  digest = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
  place = os.path.join(cache, 'vit_jax', kind, digest)

  def current():
    try:
      found = _load(place)
      if found.facts['format'] == _FORMAT and is_current(found.facts):
        return found
    except (OSError, ValueError, KeyError, TypeError):
      pass  # Missing or damaged.
    return None

  if (found := current()) is not None:
    return found
  index, may_keep = make()
  if len(index) < KEPT_FROM or not may_keep:
    return index
  try:
    _write(index, place, current)
    return _load(place)
  except (OSError, ValueError) as error:
    logging.warning(
      'The index of a data set cannot be kept in %s, so every start makes it'
      ' again: %s. Set XDG_CACHE_HOME to another folder.',
      *(place, getattr(error, 'strerror', None) or error),
    )
    return index


def _write(
  index: Index, place: str, current: Callable[[], Index | None]
) -> None:
  """Replaces what a folder holds, so that no reader sees a half of it.

  Processes that have mapped the old arrays go on with them. What is current is
  not replaced: the workers of the process that wrote it may load it next.
  """
  os.makedirs(os.path.dirname(place), exist_ok=True)
  temporary = tempfile.mkdtemp(prefix=place + '.')
  try:
    for name, array in index.arrays.items():
      np.save(f'{temporary}/{name}.npy', array)
    with open(f'{temporary}/facts.json', 'w', encoding='utf-8') as f:
      about = {'format': _FORMAT, 'arrays': sorted(index.arrays)}
      json.dump(index.facts | about, f)
    if current() is not None:  # Another process was faster.
      return
    shutil.rmtree(place, ignore_errors=True)
    try:
      os.rename(temporary, place)
    except OSError:  # Another process was faster.
      if not os.path.exists(f'{place}/facts.json'):
        raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _load(place: str) -> Index:
  with open(f'{place}/facts.json', encoding='utf-8') as f:
    facts = json_text.loads(f.read())
  arrays = {
    name: np.load(f'{place}/{name}.npy', mmap_mode='r')
    for name in facts['arrays']
  }
  return Index(facts, arrays, place)


def _load_same(place: str, digest: str) -> Index:
  """Loads an index in another process; raises ValueError if it changed."""
  index = _load(place)
  if index._digest != digest:
    raise ValueError(
      f'The index in {place} describes data that have changed since this run'
      ' began. Restart this run.'
    )
  return index
