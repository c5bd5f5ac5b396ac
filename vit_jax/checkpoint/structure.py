"""Names, shapes and dtypes of the arrays of a state, and how they differ."""

import contextlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import layout
from vit_jax.checkpoint.record import DamagedError


def read(path: epath.Path) -> Any:
  """Reads the saved tree of a checkpoint, with metadata in place of arrays.

  Raises:
    DamagedError: it cannot be read.
  """
  # Not through the manager, which is made for the run that writes.
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    try:
      return handler.metadata(path / layout.STATE).tree
    except Exception as error:  # Whatever damaged files lead to.
      raise DamagedError(
        f'{path} is damaged, or not a checkpoint of this program; remove it to'
        f' use the one before it, if there is one. {error}'
      ) from error


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """Flattens a tree of arrays (or metadata) to `{'a/b': shape}`."""
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  return {k: tuple(v.shape) for k, v in flat.items() if hasattr(v, 'shape')}


def mismatch(
  expected: Mapping[str, tuple[int, ...]],
  found: Mapping[str, tuple[int, ...]],
) -> str:
  """Lists every difference between two sets of named shapes; '' if none."""
  groups = {
    'missing': [
      f'{k} {expected[k]}' for k in sorted(expected.keys() - found.keys())
    ],
    'extra': [
      f'{k} {found[k]}' for k in sorted(found.keys() - expected.keys())
    ],
    'misshapen': [
      f'{k} is {found[k]}, expected {expected[k]}'
      for k in sorted(expected.keys() & found.keys())
      if expected[k] != found[k]
    ],
  }
  return '\n'.join(
    f'  {name} ({len(lines)}):\n    ' + '\n    '.join(lines)
    for name, lines in groups.items()
    if lines
  )
