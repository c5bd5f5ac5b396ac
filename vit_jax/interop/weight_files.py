"""Paths of weights, local or in a bucket, and checks of them."""

import os

import fsspec
from etils import epath

from vit_jax.runtime import printable
from vit_jax.workdir import files


def absolute(path: epath.PathLike) -> epath.Path:
  """Returns `files.absolute`; ValueError if the file system is unknown here."""
  scheme, remote, _ = os.fspath(path).partition('://')
  if remote:
    try:
      fsspec.get_filesystem_class(scheme)
    except ImportError as error:
      raise ValueError(
        f'{os.fspath(path)} cannot be reached: {error}. For gs:// paths run'
        ' pip install "vit-paper-jax[gcs]".'
      ) from error
  return files.absolute(path)


def is_remote(path: epath.PathLike) -> bool:
  """Returns whether a path is in a bucket, as in `gs://bucket/file`."""
  return '://' in os.fspath(path)


def existing_file(path: epath.PathLike) -> epath.Path:
  """Returns the absolute path; ValueError if no regular file is there."""
  path = absolute(path)
  if not path.exists():
    raise ValueError(f'There is no file {path}.')
  if path.is_dir():
    raise ValueError(f'{path} is a directory, expected a file.')
  files.check_regular(path)
  return path


def class_names(path: epath.PathLike) -> tuple[str, ...]:
  """Reads a text file with one class name on each line.

  Raises:
    ValueError: no regular file is there, or a line before the last is blank.
  """
  lines = existing_file(path).read_text().rstrip().split('\n')
  for i, line in enumerate(lines):
    if not line.strip():
      raise ValueError(
        f'{path}: line {i + 1} is blank, expected one class name on each line.'
      )
  return tuple(map(printable.name, lines))
