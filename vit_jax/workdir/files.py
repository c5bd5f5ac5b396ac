"""Paths that users write, and the small files of a work directory."""

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from vit_jax.runtime import errors, installed, json_text, printable
from vit_jax.workdir import buckets

# One name per line, in the order of the logits.
CLASS_NAMES = 'class_names.txt'
DATA = 'data.json'  # Which data a run has read; see `data_record`.


def absolute(path: epath.PathLike) -> epath.Path:
  """Expands `~` and makes a local path absolute, which Orbax needs.

  Paths with a scheme, such as `gs://bucket/run`, stay as they are.

  Raises:
    ValueError: gcsfs, which `gs://` needs, is not installed.
  """
  path = os.fspath(path)
  if '://' in path:
    if buckets.is_bucket(path):
      installed.require('gcsfs', extra='gcs', what=path)
    buckets.register()
    return epath.Path(path)
  return epath.Path(os.path.abspath(os.path.expanduser(path)))


def check_regular(path: epath.PathLike) -> None:
  """Raises ValueError for a pipe, socket or device, whose reads may hang.

  A missing file passes, and so does any path in a store such as `gs://`.
  """
  path = os.fspath(path)
  others = os.path.exists(path) and not os.path.isdir(path)
  if '://' not in path and others and not os.path.isfile(path):
    path = printable.name(path)
    raise ValueError(f'{path} is not a regular file.')


def open_regular(path: str, flags: int) -> int:
  """Opens a regular file; an `opener` of `open` for untrusted folders.

  Raises:
    OSError: the path is a folder, a pipe, a socket or a device.
  """
  # Without O_NONBLOCK, this waits for a pipe that nobody writes to.
  descriptor = os.open(path, flags | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(descriptor).st_mode):
    return descriptor
  os.close(descriptor)
  path = printable.name(path)
  raise OSError(f'{path} is not a regular file.')


@contextlib.contextmanager
def atomic(path: epath.Path) -> Iterator[epath.Path]:
  """Yields a temporary path, and renames it to `path` at the end.

  Its name is this process's own, so several machines may write the same file:
  the last one wins.
  """
  own = f'{path.name}.{socket.gethostname()}.{os.getpid()}.tmp'
  temporary = path.with_name(own)
  try:
    yield temporary
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def write_shared(path: epath.Path, content: bytes) -> None:
  """Writes a whole file at once; makes missing folders."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with atomic(path) as temporary:
    temporary.write_bytes(content)


def write_json(path: epath.Path, content: Any, indent: int | None = 1) -> None:
  """Writes JSON so that no reader sees a half of it; makes missing folders."""
  write_shared(path, (json.dumps(content, indent=indent) + '\n').encode())


def content(path: epath.Path) -> bytes:
  """Returns the content of a file; b'' if it does not exist."""
  try:
    return path.read_bytes()
  except FileNotFoundError:
    return b''


def read_object(path: epath.Path, remedy: str) -> dict[str, Any]:
  """Reads a file that holds a JSON object.

  Args:
    path: an existing file.
    remedy: advice if the file is damaged, as the end of a sentence.

  Raises:
    ValueError: the file is damaged; the message names it and the remedy.
  """
  check_regular(path)
  try:
    content = json_text.loads(path.read_bytes())
    if not isinstance(content, dict):
      raise ValueError(f'it holds {content!r:.40}, not an object')
  except ValueError as error:
    raise ValueError(f'{path} is damaged ({error}): {remedy}.') from error
  return content


@contextlib.contextmanager
def disk_full_named(workdir: epath.Path) -> Iterator[None]:
  """Adds the place and a remedy to the system's `No space left on device`.

  Raises:
    SaveError: the disk or the quota is full, or a file has its largest size.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    error.filename = error.filename or os.fspath(workdir)
    raise errors.SaveError(errors.described(error)) from error


def write_class_names(workdir: epath.PathLike, names: Sequence[str]) -> None:
  """Writes the names, one for each logit, in their order."""
  # A folder's name may contain a newline; each name must be one line.
  lines = map(printable.name, names)
  path = epath.Path(workdir) / CLASS_NAMES
  path.write_text(''.join(f'{line}\n' for line in lines))


def read_class_names(workdir: epath.PathLike) -> tuple[str, ...]:
  """Reads the class names of a work directory; () if it has none."""
  path = epath.Path(workdir) / CLASS_NAMES
  check_regular(path)
  if not path.exists():
    return ()
  try:
    return tuple(path.read_text(encoding='utf-8').split('\n')[:-1])
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{path} is damaged ({error}): delete it to see classes as numbers.'
    ) from error
