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


def make_mesh(
  data: int = -1, fsdp: int = 1, tensor: int = 1, slices: int = 0
) -> jax.sharding.Mesh:
  """A mesh over all devices, or over the first ones if fewer are asked for.

  Args:
    data: size of the axis `data`; -1, for one axis at most, is what the other
      axes leave.
    fsdp: size of the axis `fsdp`.
    tensor: size of the axis `tensor`.
    slices: groups of devices with a slow network between them, which only the
      axis `data` spans; 0: as the devices say (TPU slices), else the processes
      are divided into so many equal groups, in their order.

  Raises:
    ValueError: the sizes don't fit the devices, or each other.
  """
  devices = jax.devices()
  shape = axis_sizes(len(devices), data, fsdp, tensor)
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


def axis_sizes(
  num_devices: int, data: int, fsdp: int, tensor: int
) -> tuple[int, int, int]:
  """Resolves -1 in the sizes of the axes; ValueError if they don't fit."""
  sizes = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  for name, size in sizes.items():
    if size < 1 and size != -1:
      raise ValueError(
        f'mesh.{name}={size} must be -1 (all that the other axes leave) or'
        ' at least 1.'
      )
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise ValueError(
      f'mesh.{" and mesh.".join(free)} are both -1; only one axis can be what'
      ' the others leave.'
    )
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if free and num_devices % fixed == 0:
    sizes[free[0]] = num_devices // fixed
  elif free or fixed > num_devices:
    rest = f', and mesh.{free[0]} is -1' if free else ''
    wanted = ' x '.join(
      f'mesh.{name}={size}' for name, size in sizes.items() if size != -1
    )
    raise ValueError(
      f'{wanted} = {fixed}{rest}, but JAX sees {num_devices} device(s): the'
      f' product must {"divide" if free else "not exceed"} that.'
    )
  return sizes['data'], sizes['fsdp'], sizes['tensor']


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
  groups = [
    [device for device in devices if group_of[device] == group]
    for group in sorted(set(group_of.values()))
  ]
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


def _product(shape: tuple[int, ...]) -> str:
  return ' x '.join(
    f'mesh.{name}={size}' for name, size in zip(AXES, shape, strict=True)
  )
