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

from vit_jax.data.sources import listing
from vit_jax.runtime import printable
from vit_jax.workdir import files

# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# Where a tar file ends, as many bytes are looked at; tar pads with fewer.
_LOOK = 2**16


class _CompressedError(ValueError):
  pass


def find(archives: Sequence[str]) -> listing.Index:
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

  return listing.kept(
    'archives',
    '\0'.join(archives),
    lambda facts: (facts['archives'], facts['states']) == (archives, states),
    make,
  )


def path(found: listing.Index, row: int) -> str:
  """Returns the path of a file's tar file, and the file's path in it."""
  return f'{_archive(found, row)}:{found.name(row)}'


def read(found: listing.Index, row: int) -> bytes:
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


def _archive(found: listing.Index, row: int) -> str:
  return found.facts['archives'][found.arrays['archive'][row]]


def _state(path: str) -> list[int | str]:
  """Returns what changes when a tar file does: its size, and its time."""
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    info = system.info(path)
    return [info['size'], str(info.get('md5Hash') or info.get('mtime') or '')]
  info = os.stat(path)
  return [info.st_size, str(info.st_mtime_ns)]


def _walk(archives: list[str]) -> listing.Index:
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
  return listing.Index(facts, arrays | listing.encoded(names))


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
    raise _CompressedError(
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
  except (OSError, _CompressedError):
    raise
  except Exception as error:  # A damaged header may cause any exception.
    damaged.append(printable.name(f'{path} is damaged after {last}: {error}'))


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)
