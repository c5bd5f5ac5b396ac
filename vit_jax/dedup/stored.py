"""The files of a comparison: its settings, and blocks of arrays."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from vit_jax.workdir import files

SETTINGS = 'settings.json'
# What became of an image: it has a hash, is flat, or cannot be read.
HASHED, FLAT, UNREADABLE = 0, 1, 2
_REMEDY = 'delete it, and start the command again'


def check_same(folder: epath.Path, facts: Mapping[str, Any]) -> None:
  """Writes a comparison's settings.

  Raises:
    ValueError: the folder holds a comparison of other images, or one with other
      settings.
  """
  path = folder / SETTINGS
  if not path.exists():
    if folder.exists() and not folder.is_dir():
      raise ValueError(f'{folder} is a file, expected a directory.')
    if folder.exists() and (folder / 'hashes').exists():
      raise ValueError(
        f'{folder} holds hashes without {SETTINGS}, so nothing is known about'
        ' them: use another directory.'
      )
    files.write_shared(path, (json.dumps(facts, indent=2) + '\n').encode())
  saved = files.read_object(path, 'use another directory, or delete this one')
  differing = [
    f'{key}={saved.get(key)!r} there, {facts[key]!r} now'
    for key in facts
    if saved.get(key) != facts[key]
  ]
  if differing:
    raise ValueError(
      f'{folder} holds another comparison: {"; ".join(differing)}. Use another'
      ' directory, or delete this one.'
    )


def save(path: epath.Path, columns: Mapping[str, np.ndarray]) -> None:
  """Writes the arrays of a block."""
  content = io.BytesIO()
  # Before NumPy 2.1, `allow_pickle` would become an array, too.
  np.savez(content, **columns)
  files.write_shared(path, content.getvalue())


def load(path: epath.Path) -> dict[str, np.ndarray]:
  """Reads the arrays of a block; raises ValueError if it is damaged."""
  try:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
      return dict(stored)
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(f'{path} is damaged ({error}): {_REMEDY}.') from error
