"""The mesh axes `data`, `fsdp` and `tensor`, and activations on them.

The axes `data` and `fsdp` split the batch. The axis `fsdp` can also split the
state (see `layout`); `tensor` splits the heads and the MLPs' hidden layers.
Devices along `tensor` communicate the most, so they are the closest ones.
Slices, which the data-centre network connects, share only the axis `data`.
"""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

AXES = ('data', 'fsdp', 'tensor')
# The axes that split a batch's rows, and the one for heads or hidden units.
BATCH, TENSOR = ('data', 'fsdp'), 'tensor'
# The largest size of `fsdp` if `data` is -1, too. The paper's widths, 768 to
# 1280, are multiples of 32 x 8, so that each device has whole tiles of 8 rows.
# More parts would save almost no time (LOG.md), and every device would update
# the parameters that have no dimension to divide.
_SPLIT = 32


def make_mesh(
  data: int = -1,
  fsdp: int = 1,
  tensor: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """Returns a mesh over the devices, or over the first if fewer are needed.

  Args:
    data: size of the axis `data`; -1 takes what the other axes leave.
    fsdp: size of the axis `fsdp`; -1 does the same, or, if `data` is -1, too,
      see `split_over`.
    tensor: size of the axis `tensor`; -1 takes what the other axes leave, and
      is allowed only if no other axis is -1.
    devices: None takes all that JAX has.

  Raises:
    ValueError: the sizes don't fit the devices, or each other.
  """
  devices = jax.devices() if devices is None else devices
  slices = len(set(map(_slice_of, devices)))
  shape = axis_sizes(len(devices), data, fsdp, tensor, slices)
  if (size := math.prod(shape)) < len(devices):
    text = (
      f'{_product(shape)} uses {size} of the {len(devices)} devices;'
      ' mesh.data=-1 or mesh.fsdp=-1 takes what the other axes leave.'
    )
    if jax.process_count() > 1:
      raise ValueError(f'{text} With several processes, all must be used.')
    logging.warning('%s', text)
  grid = device_grid(devices[:size], shape)
  return jax.sharding.Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def split_over(devices: int) -> int:
  """Returns the size of `fsdp` if both `data` and `fsdp` are -1.

  This is the largest power of two up to 32 that divides the devices.
  """
  return math.gcd(devices, _SPLIT)


def axis_sizes(
  num_devices: int, data: int, fsdp: int, tensor: int, slices: int = 1
) -> tuple[int, int, int]:
  """Resolves -1 in the sizes of the axes; ValueError if they don't fit.

  Takes the sizes of `make_mesh`, and the number of slices.
  """
  sizes = dict(zip(AXES, (data, fsdp, tensor), strict=True))
  if data == fsdp == -1 and tensor > 0:
    groups, rest = divmod(num_devices, slices * tensor)
    sizes['fsdp'] = 1 if rest else split_over(groups)
  free = [name for name, size in sizes.items() if size == -1]
  fixed = math.prod(max(size, 0) for size in sizes.values() if size != -1)
  if fixed > 0 and len(free) == 1 and num_devices % fixed == 0:
    sizes[free[0]] = num_devices // fixed
  elif free or not 0 < fixed <= num_devices:
    raise ValueError(
      f'{_product((data, fsdp, tensor))} does not fit the {num_devices}'
      ' device(s) that JAX sees: use sizes of at least 1 whose product is at'
      ' most that, or set one of them, or both mesh.data and mesh.fsdp, to -1,'
      ' which takes what the others leave if their product divides the devices.'
    )
  return sizes['data'], sizes['fsdp'], sizes['tensor']


def device_grid(devices, shape: tuple[int, int, int]) -> np.ndarray:
  """Arranges devices so that neighbours in the mesh are close in the network.

  Args:
    devices: as many devices as the mesh has positions.
    shape: sizes of (data, fsdp, tensor).

  Returns:
    The devices, an array of the given shape. Along `data`, the slices follow
    one another.
  """
  slices = len(set(map(_slice_of, devices)))
  data, fsdp, tensor = shape
  if data % slices:
    raise ValueError(
      f'{_product(shape)} does not fit {slices} slices: mesh.data must be a'
      ' multiple of their number, as the slow network between them carries only'
      ' that axis.'
    )
  if slices == 1:
    return mesh_utils.create_device_mesh(
      shape, devices, allow_split_physical_axes=True
    )
  return mesh_utils.create_hybrid_device_mesh(
    (data // slices, fsdp, tensor),
    (slices, 1, 1),
    devices,
    allow_split_physical_axes=True,
  )


def _slice_of(device: jax.Device) -> int:
  # JAX reports each GPU host as a slice of its own, but `fsdp` may span hosts.
  return 0 if device.platform == 'gpu' else getattr(device, 'slice_index', 0)


def _product(shape: tuple[int, ...]) -> str:
  return ' x '.join(
    f'mesh.{name}={size}' for name, size in zip(AXES, shape, strict=True)
  )


# ---- Activations ------------------------------------------------------------
# Their sharding is fixed at the boundaries of a model's blocks. Otherwise the
# compiler chooses it between sharded weights; its choices can be slow, and have
# given wrong gradients on mixed meshes.


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
