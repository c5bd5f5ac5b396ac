"""Paths as users write them."""

import os
import pathlib

from etils import epath


def absolute(path: epath.PathLike) -> epath.Path:
  """Expands `~` and makes a local path absolute, as Orbax needs it.

  Paths with a scheme, such as `gs://bucket/run`, stay as they are.
  """
  path = os.fspath(path)
  if '://' in path:
    return epath.Path(path)
  return epath.Path(os.path.abspath(os.path.expanduser(path)))


def shipped(name: str) -> pathlib.Path:
  """A file of launch/ or configs/, which comes with this code.

  Args:
    name: such as `launch/locks/tpu.txt`.

  Raises:
    FileNotFoundError: it lies neither beside this package, as in a checkout,
      nor in it, as where it was installed from a wheel.
  """
  package = pathlib.Path(__file__).parent
  for folder in (package.parent, package):
    if (folder / name).exists():
      return folder / name
  raise FileNotFoundError(f'There is no {name} in {package.parent}.')
