"""Checks, before anything is written, that a checkpoint fits on the disk."""

import math
import shutil
from typing import Any

import jax
from etils import epath

# Bytes for the metadata. The arrays need at most their size: Orbax compresses
# them a little.
_BESIDE = 2**20


def shortage(directory: epath.Path, tree: Any) -> str:
  """Returns an error message if a checkpoint does not fit; '' if it does.

  Only process 0 checks, and only on file systems that report their size.

  Args:
    directory: an existing folder for the checkpoint.
    tree: global arrays, or their shapes and dtypes.
  """
  if '://' in str(directory) or jax.process_index():
    return ''
  needed = _BESIDE + sum(
    math.prod(leaf.shape) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )
  disk = shutil.disk_usage(directory)
  if not disk.total or disk.free >= needed:
    return ''
  return (
    f'No space for a checkpoint in {directory}: it takes {_size(needed)}, and'
    f' {_size(disk.free)} are free. Make room and start the same command again.'
  )


def _size(count: int) -> str:
  """Formats a number of bytes, such as `1.2 GB`."""
  power = max(0, math.floor(math.log10(max(count, 1)) / 3))
  return f'{count / 1000**power:.3g} {("B", "kB", "MB", "GB", "TB")[power]}'
