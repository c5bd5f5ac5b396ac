"""Fixes the sharding of activations at the boundaries of a model's blocks.

Otherwise the compiler chooses the layout of the activations between sharded
weights; its choices can be slow, and have given wrong gradients on mixed
meshes.
"""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec as P

# The mesh axes that split a batch's rows, and those for heads or hidden units.
BATCH, TENSOR = ('data', 'fsdp'), 'tensor'


def use_mesh(mesh: jax.sharding.Mesh):
  """Returns a context, for jitted functions, in which `constrain` acts."""
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def per_shard(
  function: Callable, *spec: str | tuple[str, ...] | None
) -> Callable:
  """Makes each device apply a function to its own part of the arguments.

  The function must treat each entry of the split dimensions independently. The
  compiler cannot always see that: for example, it would gather an array of
  fixed layout on every device. Outside of `use_mesh`, and where each device
  works on its own rows, this returns the function itself.

  Args:
    function: maps arrays, or trees of arrays, to the same.
    *spec: as for `constrain`; holds for all arguments and results.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.manual_axes:
    return function
  return jax.shard_map(
    function, in_specs=P(*spec), out_specs=P(*spec), check_vma=False
  )


def constrain(x: jax.Array, *spec: str | tuple[str, ...] | None) -> jax.Array:
  """Fixes how an array is split; does nothing outside of `use_mesh`.

  It also does nothing where each device works on its own rows.

  Args:
    x: any array.
    *spec: the mesh axes of each dimension; omitted dimensions are not split.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.manual_axes:
    return x
  return jax.lax.with_sharding_constraint(x, P(*spec))
