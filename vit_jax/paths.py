"""Paths as users write them."""

import os
import stat

from etils import epath

from vit_jax import printable


def absolute(path: epath.PathLike) -> epath.Path:
  """Expands `~` and makes a local path absolute, as Orbax needs it.

  Paths with a scheme, such as `gs://bucket/run`, stay as they are.
  """
  path = os.fspath(path)
  if '://' in path:
    return epath.Path(path)
  return epath.Path(os.path.abspath(os.path.expanduser(path)))


def check_regular(path: epath.PathLike) -> None:
  """Raises ValueError for a pipe, a socket or a device, which a read waits for.

  What is not there passes, and so does what lies in a store such as `gs://`.
  """
  path = os.fspath(path)
  others = os.path.exists(path) and not os.path.isdir(path)
  if '://' not in path and others and not os.path.isfile(path):
    path = printable.name(path)
    raise ValueError(f'{path} is a pipe or a device, expected a file.')


def open_regular(path: str, flags: int) -> int:
  """The `opener` of `open` for files among others' files.

  Raises:
    OSError: it is a folder, a pipe, a socket or a device.
  """
  # A pipe that nobody writes to is waited for without it.
  descriptor = os.open(path, flags | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(descriptor).st_mode):
    return descriptor
  os.close(descriptor)
  path = printable.name(path)
  raise OSError(f'{path} is a pipe or a device, expected a file.')
