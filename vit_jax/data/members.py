"""Finds the files inside tar files, so that each can be read by itself.

A tar file holds its files one after another, each behind a header. This walks
the headers once, also those of tar files inside a tar file, and notes where the
bytes of each file begin. The result is kept on disk, see `kept_index.py`.
"""

import dataclasses
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import fsspec
import numpy as np

from vit_jax.data import identity, kept_index, listing
from vit_jax.runtime import printable
from vit_jax.workdir import files

# An index of fewer files is not kept, as it is made in half a second.
_KEPT_FROM = 50_000
_FORMAT = 1
_COMPRESSED = ('.tar.gz', '.tgz', '.tar.bz2', '.tar.xz', '.tar.zst', '.tbz2')
# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# How many tar files may lie in one another. ImageNet-21k has two; each is read
# through those around it.
_DEEPEST = 8
# How many bytes after the last file are looked at.
_LOOK = 2**16


@dataclasses.dataclass(frozen=True)
class Members:
  """The regular files in some tar files, in the order of the tar files.

  Attributes:
    archives: paths of the tar files.
    archive: index of each file's tar file, int32 [files].
    start: where each file begins in its tar file, in bytes, int64 [files].
    size: the size of each file in bytes, int64 [files].
    names: all paths inside the tar files, concatenated, uint8.
    ends: where each path ends in `names`, int64 [files].
    damaged: what is wrong with some tar files, whose first files are here.
    kept: the folder that holds the arrays, '' if they are not kept.
    state: a digest of the tar files' sizes and times.
  """

  archives: tuple[str, ...]
  archive: np.ndarray = dataclasses.field(repr=False)
  start: np.ndarray = dataclasses.field(repr=False)
  size: np.ndarray = dataclasses.field(repr=False)
  names: np.ndarray = dataclasses.field(repr=False)
  ends: np.ndarray = dataclasses.field(repr=False)
  damaged: tuple[str, ...] = ()
  kept: str = ''
  state: str = ''

  def __len__(self) -> int:
    return len(self.start)

  def name(self, index: int) -> str:
    """Returns a file's path inside its tar file."""
    begin = int(self.ends[index - 1]) if index else 0
    name = self.names[begin : int(self.ends[index])].tobytes()
    return name.decode('utf-8', 'surrogateescape')

  def path(self, index: int) -> str:
    """Returns the path of a file's tar file, and the file's path in it."""
    return f'{self.archives[self.archive[index]]}:{self.name(index)}'

  def read(self, index: int) -> bytes:
    """Returns the bytes of a file.

    Raises:
      OSError: the tar file is gone, or ends before the file does.
    """
    archive = self.archives[self.archive[index]]
    start, size = int(self.start[index]), int(self.size[index])
    if listing.is_remote(archive):
      system, path = fsspec.core.url_to_fs(archive)
      content = system.cat_file(path, start=start, end=start + size)
    else:
      with open(archive, 'rb', opener=files.open_regular) as f:
        content = os.pread(f.fileno(), size, start)
    if len(content) < size:
      raise OSError(f'{self.path(index)} has {len(content)} of {size} bytes.')
    return content

  def __reduce__(self):
    # Pickling would copy mapped arrays, so the other process maps them itself.
    if self.kept:
      return _reload, (self.kept, self.archives, self.state)
    return Members, tuple(
      getattr(self, field.name) for field in dataclasses.fields(self)
    )


def find(archives: Sequence[str]) -> Members:
  """Finds the files in tar files, or loads a kept index.

  Args:
    archives: paths, local or remote (`gs://`).

  Raises:
    ValueError: a tar file is compressed.
  """
  archives = tuple(archives)
  with futures.ThreadPoolExecutor(16) as pool:
    states = [_FORMAT, archives, list(pool.map(_state, archives))]
  state = identity.short_hash(states)
  folder = kept_index.place('archives', '\0'.join(archives))
  arrays = kept_index.load(folder, state)
  if arrays is not None:
    return Members(archives, **arrays, kept=folder, state=state)
  members = dataclasses.replace(_walk(archives), state=state)
  if len(members) < _KEPT_FROM or members.damaged:
    return members
  arrays = ('archive', 'start', 'size', 'names', 'ends')
  arrays = {name: getattr(members, name) for name in arrays}
  if not kept_index.keep(folder, arrays, state):
    return members
  return _reload(folder, archives, state)


def _reload(folder: str, archives: tuple[str, ...], state: str) -> Members:
  arrays = kept_index.reload(folder, state)
  return Members(archives, **arrays, kept=folder, state=state)


def _state(path: str) -> list[int | str]:
  """Returns what changes when a tar file does: its size, and its time."""
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    info = system.info(path)
    return [info['size'], str(info.get('md5Hash') or info.get('mtime') or '')]
  info = os.stat(path)
  return [info.st_size, str(info.st_mtime_ns)]


def _walk(archives: Sequence[str]) -> Members:
  archive, starts, sizes, names, damaged = [], [], [], [], []
  for index, path in enumerate(archives):
    before = len(names)
    with _open(path) as f:
      for name, start, size in _files(f, path, damaged):
        names.append(name.encode('utf-8', 'surrogateescape'))
        starts.append(start)
        sizes.append(size)
    archive += [index] * (len(names) - before)
  lengths = np.fromiter(map(len, names), np.int64, len(names))
  return Members(
    archives=tuple(archives),
    archive=np.array(archive, np.int32),
    start=np.array(starts, np.int64),
    size=np.array(sizes, np.int64),
    names=np.frombuffer(b''.join(names), np.uint8),
    ends=np.cumsum(lengths),
    damaged=tuple(damaged),
  )


def _open(path: str) -> io.BufferedIOBase:
  if path.lower().endswith(_COMPRESSED):
    raise _compressed_error(path)
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    # Headers lie far apart, so reading ahead would read everything.
    return system.open(path, 'rb', block_size=2**16)
  return open(path, 'rb', opener=files.open_regular)


def _compressed_error(path: str) -> ValueError:
  return ValueError(
    f'{printable.name(path)} is compressed, so its files cannot be read one by'
    ' one. Uncompress it first, for example by `gunzip`; images are compressed'
    ' already, so that takes no more room.'
  )


def _files(
  f: io.BufferedIOBase,
  path: str,
  damaged: list[str],
  start: int = 0,
  depth: int = 1,
) -> Iterator[tuple[str, int, int]]:
  """Yields the name, the start and the size of the files in a tar file.

  Args:
    f: the tar file.
    path: its path, for messages.
    damaged: gets a message if the tar file is damaged.
    start: where it begins in the outermost tar file, in bytes.
    depth: how many tar files it lies in, with itself.
  """
  if f.read(2) == _GZIP:
    raise _compressed_error(path)
  total = f.seek(0, os.SEEK_END)
  f.seek(0)
  last, links, sparse = 'its beginning', [], []
  try:
    if depth > _DEEPEST:
      raise tarfile.ReadError(
        f'it lies in {_DEEPEST} tar files, which are the most; unpack the outer'
        ' ones'
      )
    with _parsed(lambda: tarfile.open(fileobj=f, mode='r:')) as tar:
      while member := _parsed(tar.next):
        tar.members.clear()  # All headers would stay in memory.
        if member.size < 0:  # The next header would lie before this one.
          raise tarfile.ReadError(f'{member.name!r} has {member.size} bytes')
        if not member.issparse() and member.offset_data + member.size > total:
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last = printable.name(member.name)
        if _is_hidden(member.name):
          continue
        if member.issym() or member.islnk():
          links += [last] * member.name.lower().endswith(_HELD)
        if member.issparse():
          # Its bytes are not in one piece.
          sparse += [last] * member.name.lower().endswith(_HELD)
          continue
        if not member.isreg():
          continue
        if not member.name.lower().endswith('.tar'):
          yield member.name, start + member.offset_data, member.size
          continue
        part = _Part(f, member.offset_data, member.size)
        place = start + member.offset_data
        inside = f'{path}:{member.name}'
        inner = _files(part, inside, damaged, place, depth + 1)
        for name, where, size in inner:
          yield f'{member.name}/{name}', where, size
      _check_end(f, tar.offset)
      if links:
        damaged.append(
          f'{printable.name(path)} holds {len(links):,} links in place of'
          f' files, such as {links[0]}, which are not read: pack it again with'
          ' `tar --dereference --hard-dereference`'
        )
      if sparse:
        damaged.append(
          f'{printable.name(path)} holds {len(sparse):,} sparse files, such as'
          f' {sparse[0]}, which are not read: pack it again without `--sparse`'
        )
  except tarfile.TarError as error:
    damaged.append(f'{printable.name(path)} is damaged after {last}: {error}')


def _parsed(parse: Callable[[], Any]) -> Any:
  """Returns what `parse` makes of a header; any damage is a `TarError`."""
  try:
    return parse()
  except (OSError, tarfile.TarError):
    raise
  except Exception as error:  # A damaged header may cause any exception.
    raise tarfile.ReadError(
      f'a header is wrong: {type(error).__name__}: {error}'
    ) from error


def _check_end(f: io.BufferedIOBase, end: int) -> None:
  """Checks that a tar file ends with zeros, and that nothing follows them."""
  f.seek(end)
  rest = f.read(_LOOK)
  if len(rest) < tarfile.BLOCKSIZE:
    raise tarfile.ReadError('the mark of the end is missing')
  if rest.strip(b'\0'):
    raise tarfile.ReadError(
      'more follows the mark of the end, perhaps another tar file'
    )


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)


class _Part(io.RawIOBase):
  """A part of a file, as a file."""

  def __init__(self, f: io.BufferedIOBase, start: int, size: int):
    self._f, self._start, self._size, self._at = f, start, size, 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}
    self._at = base[whence] + offset
    return self._at

  def tell(self) -> int:
    return self._at

  def readinto(self, buffer) -> int:
    size = max(0, min(len(buffer), self._size - self._at))
    self._f.seek(self._start + self._at)
    content = self._f.read(size)
    buffer[: len(content)] = content
    self._at += len(content)
    return len(content)
