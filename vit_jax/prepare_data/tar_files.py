"""Finds where each file begins in tar files, so that it is read by itself.

A tar file holds its files one after another, each behind a header. All headers
are walked once, also those of tar files inside a tar file. So files can be read
in any order.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Sequence

import fsspec

from vit_jax.data.sources import listing
from vit_jax.runtime import printable

# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# Where a tar file ends, as many bytes are looked at; tar pads with fewer.
_LOOK = 2**16


def walk(
  archives: Sequence[str], damaged: list[str]
) -> Iterator[tuple[int, str, int, int]]:
  """Yields the regular files in tar files, in their order.

  Args:
    archives: the paths of the tar files.
    damaged: gets what is wrong with these.

  Yields:
    The number of the tar file, the file's path in it, where it begins there in
    bytes, and its size.
  """
  for number, archive in enumerate(archives):
    system, path = fsspec.core.url_to_fs(archive)
    # Headers lie far apart, so reading ahead would read everything.
    with system.open(path, 'rb', block_size=2**16) as f:
      for found in _files(f, archive, damaged):
        yield number, *found


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
        sparse, begin = member.issparse(), member.offset_data
        # With a negative size, the next header would lie before this one.
        if member.size < 0 or (not sparse and begin + member.size > total):
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last = member.name
        if member.isdir() or _is_hidden(last):
          continue
        if not member.isfile() or sparse:
          # The bytes of a sparse file are not in one piece.
          unread += [last] * last.lower().endswith(_HELD)
        elif last.lower().endswith('.tar'):
          with tar.extractfile(member) as part:
            inner = f'{path}:{last}', damaged, start + begin
            for name, *place in _files(part, *inner):
              yield f'{last}/{name}', *place
        else:
          yield last, start + begin, member.size
      # A bad header passes for the end, too.
      f.seek(tar.offset)
      rest = f.read(_LOOK)
      if len(rest) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError('the mark of the end is missing')
      if rest.strip(b'\0'):
        raise tarfile.ReadError(
          'more follows the mark of the end, perhaps another tar file'
        )
  except OSError:
    raise
  except Exception as error:  # A damaged header may cause any exception.
    damaged.append(printable.name(f'{path} is damaged after {last}: {error}'))
  if unread:
    damaged.append(
      printable.name(
        f'{path} holds {len(unread):,} links or sparse files, such as'
        f' {unread[0]}, which are not read: pack it again with `tar'
        ' --dereference --hard-dereference`, without `--sparse`'
      )
    )


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)
