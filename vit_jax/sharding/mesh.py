"""The mesh: which device is where on the axes `data`, `fsdp` and `tensor`.

The batch is split over `data` and `fsdp`. Over `fsdp` also the state may be
split (see `layout`), over `tensor` the heads and the MLPs' hidden layers.
`tensor` peers exchange the most, so they are the closest devices; slices of a
pod, joined by the data-centre network, share only the axis `data`.
"""

import math

import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import AxisType

AXES = ('data', 'fsdp', 'tensor')
# What `fsdp` divides where `data` is open, too. The paper's widths, 768 to
# 1280, are multiples of 32 x 8, so that each device has whole tiles of 8 rows.
# More parts would save no time worth the name (LOG.md), and parameters with no
# dimension to divide would be updated by every device.
_SPLIT = 32


def make_mesh(
  data: int = -1, fsdp: int = 1, tensor: int = 1, slices: int = 0
) -> jax.sharding.Mesh:
  """A mesh over all devices, or over the first ones if fewer are asked for.

  Args:
    data: size of the axis `data`; -1 is what the other axes leave.
    fsdp: size of the axis `fsdp`; -1 likewise, or, if both are -1,
      see `split_over`.
    tensor: size of the axis `tensor`; -1 likewise, if no other axis is.
    slices: groups of devices with a slow network between them, which only the
      axis `data` spans; 0: as the devices say (TPU slices), else the processes
      are divided into so many equal groups, in their order.

  Raises:
    ValueError: the sizes don't fit the devices, or each other.
  """
  devices = jax.devices()
  shape = axis_sizes(
    len(devices), data, fsdp, tensor, count_slices(devices, slices)
  )
  size = math.prod(shape)
  if size < len(devices) and jax.process_count() > 1:
    raise ValueError(
      f'{_product(shape)} leaves some of the {len(devices)} devices unused,'
      f' which only works with one process, not {jax.process_count()}; set'
      ' mesh.data=-1.'
    )
  if size < len(devices):
    logging.warning(
      '%s uses %d of the %d devices; mesh.data=-1 or mesh.fsdp=-1 is what the'
      ' other axes leave.',
      *(_product(shape), size, len(devices)),
    )
  grid = device_grid(devices[:size], shape, slices)
  return jax.sharding.Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def split_over(devices: int) -> int:
  """How many of so many devices `fsdp` takes where it is free to.

  The largest power of two up to 32 that divides them.
  """
  return math.gcd(devices, _SPLIT)


def axis_sizes(
  num_devices: int, data: int, fsdp: int, tensor: int, slices: int = 1
) -> tuple[int, int, int]:
  """Resolves -1 in the sizes of the axes; ValueError if they don't fit.

  The sizes are `make_mesh`'s; `slices` is the number of slices that the devices
  are of.
  """
  sizes = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  for name, size in sizes.items():
    if size < 1 and size != -1:
      raise ValueError(
        f'mesh.{name}={size} must be -1 (all that the other axes leave) or'
        ' at least 1.'
      )
  if data == fsdp == -1 and tensor != -1 and num_devices % tensor == 0:
    groups, rest = divmod(num_devices, slices * tensor)
    sizes['fsdp'] = 1 if rest else split_over(groups)
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1 and free != ['data', 'fsdp']:
    raise ValueError(
      f'mesh.{" and mesh.".join(free)} are -1; only mesh.data and mesh.fsdp can'
      ' share what the other axes leave.'
    )
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if len(free) == 1 and num_devices % fixed == 0:
    sizes[free[0]] = num_devices // fixed
  elif free or fixed > num_devices:
    verb = 'is' if len(free) == 1 else 'are'
    rest = f', and mesh.{" and mesh.".join(free)} {verb} -1' if free else ''
    wanted = ' x '.join(
      f'mesh.{name}={size}' for name, size in sizes.items() if size != -1
    )
    raise ValueError(
      f'{wanted} = {fixed}{rest}, but JAX sees {num_devices} device(s): the'
      f' product must {"divide" if free else "not exceed"} that.'
    )
  return sizes['data'], sizes['fsdp'], sizes['tensor']


def count_slices(devices, slices: int) -> int:
  """The number of slices of some devices; `slices` as in `make_mesh`."""
  return len(_groups(devices, slices))


def device_grid(
  devices, shape: tuple[int, int, int], slices: int
) -> np.ndarray:
  """Arranges devices so that neighbours in the mesh are close in the network.

  Args:
    devices: as many as the mesh has places.
    shape: sizes of (data, fsdp, tensor).
    slices: see `make_mesh`.

  Returns:
    The devices, an array of the given shape. Along `data` one slice follows
    the other.
  """
  groups = _groups(devices, slices)
  data, fsdp, tensor = shape
  if data % len(groups):
    raise ValueError(
      f'{_product(shape)} does not fit {len(groups)} slices: mesh.data must be'
      ' a multiple of their number, as the slow network between them carries'
      ' only that axis; or take them for one by mesh.slices=1.'
    )
  part = (data // len(groups), fsdp, tensor)
  grids = [
    mesh_utils.create_device_mesh(
      part, devices=group, allow_split_physical_axes=True
    )
    for group in groups
  ]
  return np.concatenate(grids, axis=0)


def _groups(devices, slices: int) -> list[list[jax.Device]]:
  """Devices by slice, see `make_mesh`."""
  # On GPUs each host is a slice of its own, but `fsdp` may well span hosts.
  group_of = {
    device: 0 if device.platform == 'gpu' else getattr(device, 'slice_index', 0)
    for device in devices
  }
  if slices:
    processes = sorted({device.process_index for device in devices})
    if slices < 1 or len(processes) % slices:
      raise ValueError(
        f'mesh.slices={slices} must be 0 (as the devices say) or divide the'
        f' {len(processes)} process(es).'
      )
    each = len(processes) // slices
    group_of = {d: processes.index(d.process_index) // each for d in devices}
  return [
    [device for device in devices if group_of[device] == group]
    for group in sorted(set(group_of.values()))
  ]


def _product(shape: tuple[int, ...]) -> str:
  return ' x '.join(
    f'mesh.{name}={size}' for name, size in zip(AXES, shape, strict=True)
  )
