"""The device mesh, and how arrays are split over it.

`mesh.py` arranges the devices and splits activations, `layout.py` splits the
training state and `batch.py` the rows of the batch.
"""

from vit_jax.sharding.batch import batch_sharding as batch_sharding
from vit_jax.sharding.batch import check_batch_size as check_batch_size
from vit_jax.sharding.batch import feed as feed
from vit_jax.sharding.batch import local_rows as local_rows
from vit_jax.sharding.batch import put_batch as put_batch
from vit_jax.sharding.layout import Layout as Layout
from vit_jax.sharding.layout import build as build
from vit_jax.sharding.layout import default_reduce_dtype as default_reduce_dtype
from vit_jax.sharding.layout import put_tree as put_tree
from vit_jax.sharding.mesh import BATCH as BATCH
from vit_jax.sharding.mesh import TENSOR as TENSOR
from vit_jax.sharding.mesh import constrain as constrain
from vit_jax.sharding.mesh import make_mesh as make_mesh
from vit_jax.sharding.mesh import per_shard as per_shard
from vit_jax.sharding.mesh import use_mesh as use_mesh
