"""The device mesh, and how arrays are split over it.

`mesh.py` arranges the devices and splits activations, `layout.py` splits the
training state and `batch.py` the rows of the batch.
"""

from vit_jax.sharding.batch import (
  batch_sharding,
  check_batch_size,
  feed,
  local_rows,
  put_batch,
)
from vit_jax.sharding.layout import (
  Layout,
  build,
  default_reduce_dtype,
  put_tree,
)
from vit_jax.sharding.mesh import (
  BATCH,
  TENSOR,
  constrain,
  make_mesh,
  per_shard,
  use_mesh,
)

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
