"""Finds the files inside tar files, so that each can be read by itself.

A tar file holds its files one after another, each behind a header. This walks
the headers once, also those of tar files inside a tar file, and notes where the
bytes of each file begin.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent import futures

import fsspec
import numpy as np

from vit_jax.data.sources import index, listing
from vit_jax.runtime import printable
from vit_jax.workdir import files

_COMPRESSED = ('.tar.gz', '.tgz', '.tar.bz2', '.tar.xz', '.tar.zst', '.tbz2')
# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# How many tar files may lie in one another. ImageNet-21k has two; each is read
# through those around it.
_DEEPEST = 8
# How many bytes after the last file are looked at.
_LOOK = 2**16


def find(archives: Sequence[str]) -> index.Index:
  """Finds the regular files in tar files, or loads a kept index.

  Args:
    archives: paths, local or remote (`gs://`).

  Returns:
    The paths inside the tar files, in their order. Further arrays, for each
    file: `archive`, the number of its tar file; `start`, where it begins there
    in bytes; and its `size`. The facts: `archives`; and `damaged`, what is
    wrong with some tar files, whose first files are here.

  Raises:
    ValueError: a tar file is compressed.
  """
  archives = list(archives)
  with futures.ThreadPoolExecutor(16) as pool:
    states = list(pool.map(_state, archives))

  def make():
    made = _walk(archives)
    made.facts['states'] = states
    return made, not made.facts['damaged']

  return index.kept(
    'archives',
    '\0'.join(archives),
    lambda facts: (facts['archives'], facts['states']) == (archives, states),
    make,
  )


def path(found: index.Index, row: int) -> str:
  """Returns the path of a file's tar file, and the file's path in it."""
  return f'{_archive(found, row)}:{found.name(row)}'


def read(found: index.Index, row: int) -> bytes:
  """Returns the bytes of a file.

  Raises:
    OSError: the tar file is gone, or ends before the file does.
  """
  archive = _archive(found, row)
  start, size = (int(found.arrays[key][row]) for key in ('start', 'size'))
  if listing.is_remote(archive):
    system, place = fsspec.core.url_to_fs(archive)
    content = system.cat_file(place, start=start, end=start + size)
  else:
    with open(archive, 'rb', opener=files.open_regular) as f:
      content = os.pread(f.fileno(), size, start)
  if len(content) < size:
    raise OSError(f'{path(found, row)} has {len(content)} of {size} bytes.')
  return content


def _archive(found: index.Index, row: int) -> str:
  return found.facts['archives'][found.arrays['archive'][row]]


def _state(path: str) -> list[int | str]:
  """Returns what changes when a tar file does: its size, and its time."""
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    info = system.info(path)
    return [info['size'], str(info.get('md5Hash') or info.get('mtime') or '')]
  info = os.stat(path)
  return [info.st_size, str(info.st_mtime_ns)]


def _walk(archives: list[str]) -> index.Index:
  found, damaged = [], []
  for number, archive in enumerate(archives):
    with _open(archive) as f:
      found += [(number, *one) for one in _files(f, archive, damaged)]
  numbers, names, starts, sizes = (
    zip(*found, strict=True) if found else [()] * 4
  )
  arrays = {
    'archive': np.array(numbers, np.int32),
    'start': np.array(starts, np.int64),
    'size': np.array(sizes, np.int64),
  }
  facts = {'archives': archives, 'damaged': damaged}
  return index.Index(facts, arrays | index.encoded(names))


def _open(path: str) -> io.BufferedIOBase:
  if path.lower().endswith(_COMPRESSED):
    raise _compressed_error(path)
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    # Headers lie far apart, so reading ahead would read everything.
    return system.open(path, 'rb', block_size=2**16)
  return open(path, 'rb', opener=files.open_regular)


class _CompressedError(ValueError):
  pass


def _compressed_error(path: str) -> _CompressedError:
  return _CompressedError(
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
  last, unread = 'its beginning', []
  try:
    if depth > _DEEPEST:
      raise tarfile.ReadError(
        f'it lies in {_DEEPEST} tar files, which are the most; unpack the outer'
        ' ones'
      )
    with tarfile.open(fileobj=f, mode='r:') as tar:
      while member := tar.next():
        tar.members.clear()  # All headers would stay in memory.
        end = member.offset_data + member.size
        # With a negative size, the next header would lie before this one.
        if member.size < 0 or (not member.issparse() and end > total):
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last = printable.name(member.name)
        if _is_hidden(member.name):
          continue
        # The bytes of a sparse file are not in one piece.
        if member.issym() or member.islnk() or member.issparse():
          unread += [last] * member.name.lower().endswith(_HELD)
        elif member.isreg() and member.name.lower().endswith('.tar'):
          with tar.extractfile(member) as part:
            for name, *place in _files(
              part,
              f'{path}:{member.name}',
              damaged,
              start + member.offset_data,
              depth + 1,
            ):
              yield f'{member.name}/{name}', *place
        elif member.isreg():
          yield member.name, start + member.offset_data, member.size
      _check_end(f, tar.offset)
  except (OSError, _CompressedError):
    raise
  except Exception as error:  # A damaged header may cause any exception.
    damaged.append(f'{printable.name(path)} is damaged after {last}: {error}')
  if unread:
    damaged.append(
      f'{printable.name(path)} holds {len(unread):,} links or sparse files in'
      f' place of files, such as {unread[0]}, which are not read: pack it again'
      ' with `tar --dereference --hard-dereference`, without `--sparse`'
    )


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
