"""Keeps arrays on disk that describe a data set, and maps them into memory.

All processes of a machine share the mapped arrays. The folder is
`$XDG_CACHE_HOME/vit_jax` (`~/.cache/vit_jax`).
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping

import numpy as np
from absl import logging

_STATE = 'state.txt'


def place(kind: str, key: str) -> str:
  """Returns the folder for the arrays of a kind with some key."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  digest = hashlib.sha256(os.fsencode(key)).hexdigest()
  return os.path.join(cache, 'vit_jax', kind, digest[:16])


def keep(folder: str, arrays: Mapping[str, np.ndarray], state: str) -> bool:
  """Replaces what a folder holds, so that no reader sees a half of it.

  Processes that have mapped the old arrays go on with them.

  Args:
    folder: from `place`.
    arrays: name -> array.
    state: a digest of what the arrays describe; `load` asks for it.

  Returns:
    Whether the folder could be written; if not, a warning says why.
  """
  if load(folder, state) is not None:
    return True  # Another process was faster, and others read its files.
  temporary = ''
  try:
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=folder + '.')
    for name, array in arrays.items():
      np.save(f'{temporary}/{name}.npy', array)
    with open(f'{temporary}/{_STATE}', 'w', encoding='utf-8') as f:
      f.write(state)
    shutil.rmtree(folder, ignore_errors=True)
    try:
      os.rename(temporary, folder)
    except OSError:
      # Another process was faster.
      if not os.path.exists(f'{folder}/{_STATE}'):
        raise
    return True
  except OSError as error:
    logging.warning(
      'The index of a data set cannot be kept in %s, so every start makes it'
      ' again: %s. Set XDG_CACHE_HOME to another folder.',
      *(folder, error.strerror),
    )
    return False
  finally:
    if temporary:
      shutil.rmtree(temporary, ignore_errors=True)


def load(folder: str, state: str) -> dict[str, np.ndarray] | None:
  """Maps the arrays; None if they are not there, or of another state."""
  try:
    with open(f'{folder}/{_STATE}', encoding='utf-8') as f:
      if f.read() != state:
        return None
    return {
      name.removesuffix('.npy'): np.load(f'{folder}/{name}', mmap_mode='r')
      for name in os.listdir(folder)
      if name.endswith('.npy')
    }
  except (OSError, ValueError):  # Missing or damaged.
    return None


def reload(folder: str, state: str) -> dict[str, np.ndarray]:
  """Maps arrays that were there before; raises ValueError if they changed."""
  arrays = load(folder, state)
  if arrays is None:
    raise ValueError(
      f'The index in {folder} is gone, or describes data that has changed'
      ' since this run began. Restart this run.'
    )
  return arrays
