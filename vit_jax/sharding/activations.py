"""How activations are split, said at the boundaries of a model's blocks.

Without it the compiler picks the layout of what is between sharded weights;
its choices can be slow, and have given wrong gradients on mixed meshes.
"""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec as P

# The axes of the mesh that split a batch's rows, and heads or hidden units.
BATCH, TENSOR = ('data', 'fsdp'), 'tensor'


def use_mesh(mesh: jax.sharding.Mesh):
  """A context, for use inside a jitted function, in which `constrain` acts."""
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def per_shard(
  function: Callable, *spec: str | tuple[str, ...] | None
) -> Callable:
  """Has each device apply a function to its own part of the arguments.

  The function must treat the entries of the split dimensions one by one. The
  compiler cannot always see that: it would gather an array of fixed layout on
  every device, for example. Outside of `use_mesh`, and where each device works
  on its own rows, this returns the function itself.

  Args:
    function: of arrays, or trees of them, to the same.
    *spec: as for `constrain`, of all arguments and results.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.manual_axes:
    return function
  return jax.shard_map(
    function, in_specs=P(*spec), out_specs=P(*spec), check_vma=False
  )


def constrain(x: jax.Array, *spec: str | tuple[str, ...] | None) -> jax.Array:
  """Fixes how an array is split; does nothing outside of `use_mesh`.

  Nor where each device works on its own rows, which leaves nothing to split.

  Args:
    x: any array.
    *spec: the mesh axes of each of its dimensions; left out ones are whole.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.manual_axes:
    return x
  return jax.lax.with_sharding_constraint(x, P(*spec))
