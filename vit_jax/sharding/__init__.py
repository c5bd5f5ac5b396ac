"""The device mesh, and how arrays are split over it.

`mesh.py` arranges the devices, `layout.py` splits the training state,
`batch.py` the rows of the batch and `activations.py` the activations.
"""

from vit_jax.sharding.activations import (
  BATCH,
  TENSOR,
  constrain,
  per_shard,
  use_mesh,
)
from vit_jax.sharding.batch import (
  batch_sharding,
  check_batch_size,
  feed,
  local_rows,
  put_batch,
)
from vit_jax.sharding.layout import Layout, default_reduce_dtype, put_tree
from vit_jax.sharding.mesh import make_mesh

__all__ = [
  'BATCH',
  'TENSOR',
  'Layout',
  'batch_sharding',
  'build',
  'check_batch_size',
  'constrain',
  'default_reduce_dtype',
  'feed',
  'local_rows',
  'make_mesh',
  'per_shard',
  'put_batch',
  'put_tree',
  'use_mesh',
]


def build(
  *,
  shard: str,
  gather: str,
  partition: str = 'auto',
  reduce_dtype: str = 'auto',
  **axes: int,
) -> Layout:
  """Builds the layout of the config's `mesh` section.

  Args:
    shard: what is split over the axis `fsdp`, see `layout.SHARDS`.
    gather: when split parameters are gathered, see `layout.GATHERS`.
    partition: what splits the work, see `layout.PARTITIONS`.
    reduce_dtype: the dtype of the sums of gradients, see `layout.Layout`.
    **axes: the sizes of the axes, see `mesh.make_mesh`.

  Raises:
    ValueError: a choice is unknown, or the sizes don't fit the devices.
  """
  return Layout(make_mesh(**axes), shard, gather, partition, reduce_dtype)
