"""The devices that a run is planned for: TPU slices, GPUs, or this machine.

The TPU compiler (libtpu) knows the devices of every slice and compiles for
them on any x86 machine. This module never opens a TPU. `gpus` has the GPUs.
"""

import dataclasses
import importlib.util
import math
import os
import re

import jax
import ml_collections
from jax.experimental import topologies

from vit_jax import sharding, topology
from vit_jax.plan import chips as chips_lib
from vit_jax.plan import estimate as estimate_lib
from vit_jax.plan import gpus, hlo
from vit_jax.sharding import mesh as mesh_lib

INSTALL = (
  'The TPU compiler (libtpu) is not installed, so memory and time are unknown.'
  ' Install it on x86-64 Linux with pip install "vit-paper-jax[plan]". No TPU'
  ' is needed.'
)
# Topologies that mean this machine, whose speed is measured.
LOCAL = ('local', 'cpu', 'gpu')

# By default, libtpu asks the cloud's metadata server (absent on a laptop),
# allows only one process at a time, and writes logs.
_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v3-8',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_STDERR_LOG_LEVEL': '3',
  'TPU_MIN_LOG_LEVEL': '3',
  'TPU_LOG_DIR': 'disabled',
}
# On the hardware, JAX shows these generations' chips, of two cores each, as one
# device. By default, libtpu shows the cores of a v4 chip.
_MEGACORE = ('v4', 'v5p')


@dataclasses.dataclass(frozen=True)
class Target:
  """One slice, or several joined by the data-centre network.

  Attributes:
    slice: the shape of each slice.
    slices: number of slices.
  """

  slice: topology.Slice
  slices: int = 1
  platform = 'tpu'
  options = None  # The compiler's, besides those of a run.

  def __str__(self) -> str:
    """Returns the name that `parse` takes: `v3:16x16`, `2xv5e:16x16`."""
    return f'{self.slices}x{self.slice}' if self.slices > 1 else str(self.slice)

  @property
  def generation(self) -> str:
    return self.slice.generation.name

  @property
  def devices(self) -> int:
    """Number of devices that JAX shows on the hardware."""
    return self.slices * self.slice.devices

  @property
  def chips(self) -> int:
    return self.slices * self.slice.chips

  @property
  def cores(self) -> int:
    """Number of TensorCores, the unit of core-days."""
    return self.slices * self.slice.cores

  @property
  def chip(self) -> chips_lib.Chip:
    """The facts of one JAX device."""
    chip = chips_lib.CHIPS[self.generation]
    merged = chip.devices_per_chip // self.slice.generation.devices_per_chip
    if merged == 1:
      return chip
    return dataclasses.replace(
      chip,
      device='chip',
      devices_per_chip=1,
      peak_flops=merged * chip.peak_flops,
      hbm_usable_bytes=merged * chip.hbm_usable_bytes,
      hbm_bytes_per_second=merged * chip.hbm_bytes_per_second,
      network_bytes_per_second=merged * chip.network_bytes_per_second,
    )

  @property
  def device(self) -> str:
    """Description of one JAX device, such as 'chip of 2 TensorCores'."""
    cores = self.cores // self.devices
    part = self.slice.generation.devices_per_chip > 1
    return ('TensorCore' if part else 'chip') + (
      f' of {cores} TensorCores' if cores > 1 else ''
    )

  def open(self) -> list[jax.Device]:
    """Returns the devices, which need not exist; see `compile_only`."""
    return compile_only(self)

  def estimate(self, module: hlo.Module) -> estimate_lib.Estimate:
    """Estimates the time of a compiled program; see `estimate`."""
    return estimate_lib.estimate(module, self.chip)


AnyTarget = Target | gpus.Target


def parse(text: str) -> AnyTarget:
  """Parses `v3:16x16`, `v3-512`, `2xv5e:16x16` for two slices, or `h100x8`.

  Raises:
    ValueError: there is no such slice or machine; lists the choices.
  """
  if found := gpus.parse(text):
    return found
  several = re.fullmatch(r'(\d+)x([a-z].*)', text)
  if not several:
    return Target(topology.parse(text))
  if not int(several[1]):
    raise ValueError(f'{text!r}: the number of slices must be at least one.')
  return Target(topology.parse(several[2]), int(several[1]))


def of_generation(name: str) -> list[AnyTarget]:
  """Returns a generation's slices by size; ValueError if it is unknown."""
  if name in gpus.GPUS:
    return gpus.of_generation(name)
  if name not in topology.GENERATIONS:
    raise ValueError(
      f'auto:{name}: no TPU generation is called {name!r}; choose one of'
      f' {", ".join(topology.GENERATIONS)}, or a GPU: {", ".join(gpus.GPUS)}.'
    )
  found = [Target(s) for s in topology.slices() if s.generation.name == name]
  return sorted(found, key=lambda target: target.chips)


def have_compiler() -> bool:
  """Returns whether libtpu is installed, without loading it."""
  return bool(
    os.environ.get('TPU_LIBRARY_PATH') or importlib.util.find_spec('libtpu')
  )


def leave_hardware_alone() -> None:
  """Keeps this process off accelerators; call it before JAX is first used.

  Ahead-of-time compilation needs no accelerator, and on a TPU VM a training
  run may be using the TPU.
  """
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')


def compile_only(target: Target) -> list[jax.Device]:
  """Returns the devices of a slice that need not exist.

  Raises:
    ValueError: libtpu is not installed or does not know the slice.
  """
  if not have_compiler():
    raise ValueError(INSTALL)
  options = {}
  if target.generation in _MEGACORE:
    options['chip_config_name'] = 'megacore'
  if target.slice.chips_per_host == 1:
    options['chips_per_host_bounds'] = (1, 1, 1)
  if target.slices > 1:
    options['num_slices'] = target.slices
  try:
    devices = topologies.get_topology_desc(
      str(target.slice), platform='tpu', **options
    ).devices
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    raise ValueError(f'libtpu has no devices for {target}: {error}') from error
  if len(devices) != target.devices:
    raise ValueError(
      f'libtpu shows {len(devices)} devices for {target}, but vit_jax expects'
      f' {target.devices}. Install the version of launch/locks/tpu.txt.'
    )
  return devices


def check(config: ml_collections.ConfigDict, target: AnyTarget) -> None:
  """Checks the mesh and the batch against a slice; needs no devices.

  Raises:
    ValueError: the mesh does not fit the slice or leaves a part of it unused,
      or the batch cannot be split evenly over its devices.
  """
  mesh = config.mesh
  slices = target.slices
  shape = mesh_lib.axis_sizes(
    target.devices, *(mesh[axis] for axis in mesh_lib.AXES), slices
  )
  sizes = dict(zip(mesh_lib.AXES, shape, strict=True))
  named = ' x '.join(f'mesh.{name}={size}' for name, size in sizes.items())
  if math.prod(shape) != target.devices:
    raise ValueError(
      f'{named} uses {math.prod(shape)} of the {target.devices} devices of'
      f' {target}: plan a smaller slice, or set mesh.data=-1.'
    )
  if sizes['data'] % slices:
    raise ValueError(
      f'{named} does not fit the {slices} slices of {target}: only the axis'
      f' data may span slices, so mesh.data must be a multiple of {slices};'
      ' give --config.mesh.data=-1 --config.mesh.fsdp=-1.'
    )
  sharding.check_batch_size(
    'data.batch_size',
    config.data.batch_size,
    jax.sharding.AbstractMesh(shape, mesh_lib.AXES),
    config.accumulation_steps,
  )


def layout(
  config: ml_collections.ConfigDict, devices: list[jax.Device]
) -> sharding.Layout:
  """Returns a config's layout over the given devices, see `sharding.build`."""
  return sharding.build(**config.mesh, devices=devices)
