"""Finds the files inside tar files, so that each can be read by itself.

A tar file holds its files one after another, each behind a header. This walks
the headers once, also those of tar files inside a tar file, and notes where the
bytes of each file begin. An index of many files is kept on disk, in
`$XDG_CACHE_HOME/vit_jax` (`~/.cache/vit_jax`), and mapped into memory, which
the processes of a machine share: walking ImageNet-1k takes minutes.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

import fsspec
import numpy as np
from absl import logging

from vit_jax.data.sources import listing
from vit_jax.runtime import printable
from vit_jax.workdir import files

# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# Where a tar file ends, as many bytes are looked at; tar pads with fewer.
_LOOK = 2**16
# An index of fewer files is not kept, as making it takes a few seconds.
KEPT_FROM = 50_000
_ARRAYS = ('letters', 'ends', 'archive', 'start', 'size')
# Part of an index's place, so that those of other versions are made again.
_FORMAT = 1
# What reading an index raises if it is missing or damaged.
_DAMAGED = (OSError, ValueError, EOFError)
# An outdated index is not removed before, as another process may be writing it.
_DAY = 24 * 3600


@dataclasses.dataclass(frozen=True)
class Members:
  """The regular files in some tar files, in their order.

  Attributes:
    archives: the paths of the tar files.
    names: the paths of the files inside them.
    archive: the number of each file's tar file, int32.
    start: where each begins there in bytes, int64.
    size: of each in bytes, int64.
    damaged: what is wrong with some tar files, whose first files are here.
    place: the folder that keeps this; '' if none does.
  """

  archives: list[str]
  names: listing.Names
  archive: np.ndarray
  start: np.ndarray
  size: np.ndarray
  damaged: list[str] = dataclasses.field(default_factory=list)
  place: str = ''

  def __reduce__(self):
    # Pickling would copy mapped arrays, so the other process maps them itself.
    if self.place:
      return _load, (self.archives, self.place)
    fields = dataclasses.fields(self)
    return Members, tuple(getattr(self, field.name) for field in fields)

  def path(self, row: int) -> str:
    """Returns the path of a file's tar file, and the file's path in it."""
    return f'{self.archives[self.archive[row]]}:{self.names[row]}'

  def read(self, row: int) -> bytes:
    """Returns the bytes of a file.

    Raises:
      OSError: the tar file is gone, or ends before the file does.
    """
    archive = self.archives[self.archive[row]]
    start, size = int(self.start[row]), int(self.size[row])
    if listing.is_remote(archive):
      system, place = fsspec.core.url_to_fs(archive)
      content = system.cat_file(place, start=start, end=start + size)
    else:
      with open(archive, 'rb', opener=files.open_regular) as f:
        content = os.pread(f.fileno(), size, start)
    if len(content) < size:
      raise OSError(f'{self.path(row)} has {len(content)} of {size} bytes.')
    return content


def find(archives: Sequence[str]) -> Members:
  """Finds the regular files in tar files, or loads a kept index.

  Args:
    archives: paths, local or remote (`gs://`).

  Raises:
    ValueError: a tar file is compressed.
  """
  archives = list(archives)
  with futures.ThreadPoolExecutor(16) as pool:
    states = list(pool.map(_state, archives))
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  # Other sizes and times of the same tar files have another place beside it.
  place = os.path.join(
    *(cache, 'vit_jax', 'members', _key(archives), _key([_FORMAT, states]))
  )
  try:
    return _load(archives, place)
  except _DAMAGED:
    made = _walk(archives)
  if len(made.names) < KEPT_FROM or made.damaged:
    return made
  try:
    _keep(made, place)
    _remove_outdated(place)
    return _load(archives, place)
  except _DAMAGED as error:
    logging.warning(
      'The index of tar files cannot be kept in %s, so every start makes it'
      ' again: %s. Set XDG_CACHE_HOME to another folder.',
      *(place, getattr(error, 'strerror', None) or error),
    )
    return made


def _key(facts: list) -> str:
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _state(path: str) -> list[int | str]:
  """Returns what changes when a tar file does: its size, and its time."""
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    info = system.info(path)
    return [info['size'], str(info.get('md5Hash') or info.get('mtime') or '')]
  info = os.stat(path)
  return [info.st_size, str(info.st_mtime_ns)]


def _keep(made: Members, place: str) -> None:
  """Writes an index, so that no reader sees a half of it."""
  os.makedirs(os.path.dirname(place), exist_ok=True)
  temporary = tempfile.mkdtemp(prefix=place + '.')
  arrays = (made.names.letters, made.names.ends, made.archive, made.start)
  try:
    for name, values in zip(_ARRAYS, (*arrays, made.size), strict=True):
      np.save(f'{temporary}/{name}.npy', values)
    try:
      os.rename(temporary, place)
      return
    except OSError:  # Another process was faster, or what is there is damaged.
      pass
    try:
      _load(made.archives, place)
    except _DAMAGED:
      shutil.rmtree(place, ignore_errors=True)
      os.rename(temporary, place)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_outdated(place: str) -> None:
  """Removes indexes of earlier states of the same tar files."""
  with os.scandir(os.path.dirname(place)) as scan:
    for entry in scan:
      with contextlib.suppress(OSError):  # Another process was faster.
        old = time.time() - entry.stat().st_mtime > _DAY
        if old and entry.name != os.path.basename(place):
          shutil.rmtree(entry.path)


def _load(archives: list[str], place: str) -> Members:
  letters, ends, *others = (
    np.load(f'{place}/{name}.npy', mmap_mode='r') for name in _ARRAYS
  )
  return Members(archives, listing.Names(letters, ends), *others, place=place)


def _walk(archives: list[str]) -> Members:
  found, damaged = [], []
  for number, archive in enumerate(archives):
    with _open(archive) as f:
      found += [(number, *one) for one in _files(f, archive, damaged)]
  numbers, names, starts, sizes = (
    zip(*found, strict=True) if found else [()] * 4
  )
  return Members(
    archives,
    listing.Names.of(names),
    np.array(numbers, np.int32),
    np.array(starts, np.int64),
    np.array(sizes, np.int64),
    damaged,
  )


def _open(path: str) -> io.BufferedIOBase:
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    # Headers lie far apart, so reading ahead would read everything.
    return system.open(path, 'rb', block_size=2**16)
  return open(path, 'rb', opener=files.open_regular)


def _files(
  f: io.BufferedIOBase, path: str, damaged: list[str], start: int = 0
) -> Iterator[tuple[str, int, int]]:
  """Yields the name, the start and the size of the files in a tar file.

  Args:
    f: the tar file.
    path: its path, for messages.
    damaged: gets a message if the tar file is damaged.
    start: where it begins in the outermost tar file, in bytes.
  """
  if f.read(2) == _GZIP:
    raise ValueError(
      f'{printable.name(path)} is compressed, so its files cannot be read one'
      ' by one. Uncompress it first, for example by `gunzip`; images are'
      ' compressed already, so that takes no more room.'
    )
  total = f.seek(0, os.SEEK_END)
  f.seek(0)
  last, unread = 'its beginning', []
  try:
    with tarfile.open(fileobj=f, mode='r:') as tar:
      while member := tar.next():
        tar.members.clear()  # All headers would stay in memory.
        end = member.offset_data + member.size
        # With a negative size, the next header would lie before this one.
        if member.size < 0 or (not member.issparse() and end > total):
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last, held = member.name, member.name.lower().endswith(_HELD)
        if _is_hidden(last):
          continue
        if not member.isfile() or member.issparse():
          if held and not member.isdir():
            # The bytes of a sparse file are not in one piece.
            unread.append(last)
        elif last.lower().endswith('.tar'):
          begin = start + member.offset_data
          with tar.extractfile(member) as part:
            for name, *place in _files(part, f'{path}:{last}', damaged, begin):
              yield f'{last}/{name}', *place
        else:
          yield last, start + member.offset_data, member.size
      # A bad header passes for the end, too.
      f.seek(tar.offset)
      rest = f.read(_LOOK)
      if len(rest) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError('the mark of the end is missing')
      if rest.strip(b'\0'):
        raise tarfile.ReadError(
          'more follows the mark of the end, perhaps another tar file'
        )
      if unread:
        damaged.append(
          printable.name(
            f'{path} holds {len(unread):,} links or sparse files, such as'
            f' {unread[0]}, which are not read: pack it again with `tar'
            ' --dereference --hard-dereference`, without `--sparse`'
          )
        )
  except OSError:
    raise
  except Exception as error:  # A damaged header may cause any exception.
    damaged.append(printable.name(f'{path} is damaged after {last}: {error}'))


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)
