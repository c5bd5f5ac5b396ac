"""Paths as users write them."""

import os

from etils import epath


def absolute(path: epath.PathLike) -> epath.Path:
  """Expands `~` and makes a local path absolute, as Orbax needs it.

  Paths with a scheme, such as `gs://bucket/run`, stay as they are.
  """
  path = os.fspath(path)
  if '://' in path:
    return epath.Path(path)
  return epath.Path(os.path.abspath(os.path.expanduser(path)))
