"""Guards: the mesh has the right sizes, and places slices correctly."""

import dataclasses

import jax
import numpy as np
import pytest

from vit_jax import sharding
from vit_jax.sharding import mesh as mesh_lib


@dataclasses.dataclass(frozen=True)
class Device:
  """A fake device, for meshes of other machines."""

  id: int
  process_index: int = 0
  slice_index: int = 0
  platform: str = 'fake'
  device_kind: str = 'fake'


@pytest.mark.parametrize(
  ('sizes', 'shape'),
  [
    ((-1, 2, 2), (2, 2, 2)),
    ((2, -1, 1), (2, 4, 1)),
    ((-1, -1, 2), (1, 4, 2)),
    ((1, 1, -1), (1, 1, 8)),
    ((3, 1, 1), (3, 1, 1)),
  ],
)
def test_axis_sizes(sizes, shape):
  assert mesh_lib.axis_sizes(8, *sizes) == shape
  mesh = sharding.make_mesh(*sizes)
  assert tuple(mesh.shape.values()) == shape
  assert mesh.axis_names == ('data', 'fsdp', 'tensor')
  # Devices along the last axis communicate the most, so they are neighbours.
  assert [d.id for d in mesh.devices.flat] == list(range(mesh.size))


def test_default_fsdp_size():
  for devices, tensor, slices, shape in (
    *((128, 1, 1, (4, 32, 1)), (512, 2, 1, (8, 32, 2)), (24, 1, 1, (3, 8, 1))),
    (7, 1, 1, (7, 1, 1)),
    # `fsdp` stays within a slice.
    *((32, 1, 4, (4, 8, 1)), (32, 4, 2, (2, 4, 4))),
  ):
    assert mesh_lib.axis_sizes(devices, -1, -1, tensor, slices) == shape


@pytest.mark.parametrize(
  'sizes',
  [
    *((-1, 3, 1), (-1, -1, 3), (4, 4, 1), (-1, 1, -1)),
    *((0, 1, 1), (-1, 1, 0), (-2, -2, 1)),
  ],
)
def test_sizes_that_do_not_fit(sizes):
  named = 'mesh.data={} x mesh.fsdp={} x mesh.tensor={}'.format(*sizes)
  with pytest.raises(ValueError, match=f'{named} .* 8 device.*use sizes'):
    mesh_lib.axis_sizes(8, *sizes)


def test_several_processes_must_use_all_devices(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(ValueError, match=r'4 of the 8 devices.*must be used'):
    sharding.make_mesh(2, 2, 1)
  sharding.make_mesh(2, 2, 2)


def _ids(grid):
  return np.vectorize(lambda device: device.id)(grid).tolist()


def test_only_data_spans_slices():
  # The devices of two slices, in an order that mixes them.
  devices = [Device(id=i, slice_index=i % 2) for i in range(8)]
  grid = mesh_lib.device_grid(devices, (2, 2, 2))
  assert _ids(grid) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
  mesh = sharding.make_mesh(-1, 1, 2, devices)
  assert _ids(mesh.devices) == [[[0, 2]], [[4, 6]], [[1, 3]], [[5, 7]]]
  with pytest.raises(ValueError, match=r'does not fit 2 slices: mesh.data'):
    mesh_lib.device_grid(devices, (1, 8, 1))
  # Hosts of GPUs are no slices.
  devices = [Device(id=i, slice_index=i // 4, platform='gpu') for i in range(8)]
  mesh_lib.device_grid(devices, (1, 8, 1))
