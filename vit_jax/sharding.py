"""The device mesh, and where arrays live on it."""

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def make_mesh(data: int = -1) -> jax.sharding.Mesh:
  """A mesh with the axis `data` over the first `data` devices (-1: all).

  Raises:
    ValueError: `data` is not -1 or between 1 and the number of devices.
  """
  devices = jax.devices()
  size = len(devices) if data == -1 else data
  if not 1 <= size <= len(devices):
    raise ValueError(
      f'mesh.data={data} must be -1 (all) or between 1 and the'
      f' {len(devices)} {devices[0].platform} device(s) that JAX sees.'
    )
  if size < len(devices) and jax.process_count() > 1:
    raise ValueError(
      f'mesh.data={data} leaves some of the {len(devices)} devices unused,'
      f' which only works with one process, not {jax.process_count()};'
      ' set it to -1.'
    )
  return jax.make_mesh(
    (size,), ('data',), devices=devices[:size], axis_types=(AxisType.Auto,)
  )


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """A whole copy on each device."""
  return NamedSharding(mesh, P())


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
  """The leading axis split over the mesh."""
  return NamedSharding(mesh, P('data'))


def put_batch(
  batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, Any]:
  """Assembles this host's rows into global arrays; starts the transfer.

  Args:
    batch: this process's rows of the global batch, in order.
    mesh: the mesh that `batch_sharding` splits the rows over.

  Returns:
    The same dict of global `jax.Array`s; does not wait for the copies.
  """
  sharding = batch_sharding(mesh)
  return {
    key: jax.make_array_from_process_local_data(sharding, rows)
    for key, rows in batch.items()
  }


def feed(
  batches: Iterator[dict],
  mesh: jax.sharding.Mesh,
  count: int,
  on_wait: Callable[[float], None],
) -> Iterator[dict[str, Any]]:
  """Yields global batches, the transfer of the next one under way.

  Args:
    batches: this process's rows, see `pipeline.train_batches`.
    mesh: where the rows go.
    count: how many batches to yield.
    on_wait: called with the seconds each batch kept the loop waiting.
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
  """Raises ValueError unless each device gets equally many rows."""
  parts = mesh.size * micro_batches
  if batch_size > 0 and batch_size % parts == 0:
    return
  detail = f'{mesh.size} device(s)'
  if micro_batches > 1:
    detail += f' x {micro_batches} accumulation steps = {parts}'
  lower = batch_size // parts * parts
  near = [str(n) for n in (lower, lower + parts) if n > 0]
  raise ValueError(
    f'{name}={batch_size} must be a positive multiple of {detail}; the'
    f' nearest: {" or ".join(near)}.'
  )
