"""Whether a checkpoint fits on the disk, before anything is written."""

import math
import shutil
from typing import Any

import jax
from etils import epath

# Beside the arrays' bytes, which are compressed a little: what describes them.
_BESIDE = 2**20


def shortage(directory: epath.Path, tree: Any) -> str:
  """Says what is missing for a checkpoint; '' if nothing is.

  Only process 0 looks, and only on file systems that tell how large they are.

  Args:
    directory: exists; where the checkpoint goes.
    tree: of arrays or of their shapes and dtypes, all processes' parts.
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
  """Bytes as text, such as `1.2 GB`."""
  power = max(0, math.floor(math.log10(max(count, 1)) / 3))
  return f'{count / 1000**power:.3g} {("B", "kB", "MB", "GB", "TB")[power]}'
