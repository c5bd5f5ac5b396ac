"""Tells each process which rows of a batch to read, and puts them on the mesh.

The axes `data` and `fsdp` split the rows into data x fsdp equal parts, in
order. A process reads the parts that its devices hold. Devices that differ only
in `tensor` hold the same part, even if they belong to several processes.
"""

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.sharding.mesh import BATCH


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Returns the sharding that splits the leading axis over the mesh."""
  return NamedSharding(mesh, P(BATCH))


def local_rows(mesh: jax.sharding.Mesh, batch_size: int) -> tuple[int, ...]:
  """Returns the rows of a global batch that this process reads, in order."""
  indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
  starts = {index[0].indices(batch_size)[:2] for index in indices.values()}
  return tuple(row for part in sorted(starts) for row in range(*part))


def put_batch(
  batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Assembles the processes' rows into global arrays; starts the transfer.

  Args:
    batch: this process's rows of the global batch, see `local_rows`.
    mesh: the mesh that `batch_sharding` splits the rows over.

  Returns:
    A dict of global `jax.Array`s by the same keys; does not wait for the copy.
  """
  place = batch_sharding(mesh)
  return {
    key: jax.make_array_from_process_local_data(place, rows)
    for key, rows in batch.items()
  }


def _num_parts(mesh: jax.sharding.Mesh) -> int:
  return mesh.shape['data'] * mesh.shape['fsdp']


def feed(
  batches: Iterator[dict],
  mesh: jax.sharding.Mesh,
  count: int,
  on_wait: Callable[[float], None],
) -> Iterator[dict[str, Any]]:
  """Yields global batches while the next one is being transferred.

  Args:
    batches: this process's rows, see `pipeline.train_batches`.
    mesh: the mesh to put the rows on.
    count: how many batches to yield.
    on_wait: called with the seconds that the loop waited for each batch.
  """
  queue = collections.deque()
  for index in range(count + 1):
    if index < count:
      before = time.monotonic()
      host_batch = next(batches)
      on_wait(time.monotonic() - before)
      queue.append(put_batch(host_batch, mesh))
    if index:
      yield queue.popleft()


def check_batch_size(
  name: str, batch_size: int, mesh: jax.sharding.Mesh, micro_batches: int = 1
) -> None:
  """Raises ValueError unless all parts of the mesh get equally many rows."""
  parts = _num_parts(mesh) * micro_batches
  if batch_size > 0 and batch_size % parts == 0:
    return
  detail = f'{_num_parts(mesh)} device(s)'
  if mesh.shape['tensor'] > 1:
    detail = f'mesh.data x mesh.fsdp = {_num_parts(mesh)}'
  if micro_batches > 1:
    detail += f' x {micro_batches} accumulation steps = {parts}'
  lower = batch_size // parts * parts
  near = [str(n) for n in (lower, lower + parts) if n > 0]
  raise ValueError(
    f'{name}={batch_size} must be a positive multiple of {detail}; the'
    f' nearest: {" or ".join(near)}.'
  )
