"""The devices that a run is planned for: TPU slices, or GPUs of one machine.

The TPU compiler (libtpu) knows the devices of every slice and compiles for
them on any x86 machine. XLA's GPU compiler comes with JAX's plugin and needs
only a description of a GPU. This module never opens a device.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re

import jax
import ml_collections
from jax.experimental import topologies

from vit_jax import sharding, topology
from vit_jax.plan import chips as chips_lib
from vit_jax.plan.chips import GPUS
from vit_jax.runtime import jax_internals
from vit_jax.sharding import mesh as mesh_lib

INSTALL = (
  'The TPU compiler (libtpu) is not installed, so memory and time are unknown.'
  ' Install it on x86-64 Linux with pip install "vit-paper-jax[plan]". No TPU'
  ' is needed.'
)
INSTALL_GPU = (
  'The GPU compiler is not installed. Install it on Linux with pip install'
  ' "vit-paper-jax[cuda]" (or "jax[cuda12]"). No GPU is needed.'
)
# NVLink joins this many GPUs of one machine.
MOST = 8

# By default, libtpu asks the cloud's metadata server (absent on a laptop),
# allows only one process at a time, and writes logs.
ENVIRONMENT = {
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
# On a GPU the compiler tries which kernel of a product is fastest, and takes
# cuBLAS's. Without one it would take its own (Triton).
_GPU_OPTIONS = {'xla_gpu_enable_triton_gemm': False}


@dataclasses.dataclass(frozen=True)
class Target:
  """One slice, several joined by the data-centre network, or GPUs.

  Attributes:
    kind: the TPU generation or GPU, such as 'v3' or 'h100'.
    devices: number of devices that JAX shows on the hardware.
    slice: the shape of each slice; None for GPUs.
    slices: number of slices.
  """

  kind: str
  devices: int
  slice: topology.Slice | None = None
  slices: int = 1

  def __str__(self) -> str:
    """Returns what `parse` takes: `v3:16x16`, `2xv5e:16x16`, `h100x8`."""
    if not self.slice:
      return f'{self.kind}x{self.devices}'
    return f'{self.slices}x{self.slice}' if self.slices > 1 else str(self.slice)

  @property
  def platform(self) -> str:
    return 'tpu' if self.slice else 'gpu'

  @property
  def options(self) -> dict[str, bool] | None:
    """The compiler's options, besides those of a run."""
    return None if self.slice else _GPU_OPTIONS

  @property
  def chips(self) -> int:
    return self.slices * self.slice.chips if self.slice else self.devices

  @property
  def cores(self) -> int | None:
    """Number of TensorCores, the unit of core-days; None for GPUs."""
    return self.slices * self.slice.cores if self.slice else None

  @property
  def chip(self) -> chips_lib.Chip:
    """The facts of one JAX device."""
    if self.slice:
      return chips_lib.CHIPS[self.kind]
    return GPUS[self.kind].chip

  @property
  def device(self) -> str:
    """Description of one JAX device, such as 'chip of 2 TensorCores'."""
    if not self.slice:
      return 'GPU'
    if self.slice.generation.devices_per_chip > 1:
      return 'TensorCore'
    cores = self.cores // self.devices
    return f'chip of {cores} TensorCores' if cores > 1 else 'chip'


def _joined(one: topology.Slice, slices: int = 1) -> Target:
  return Target(one.generation.name, slices * one.devices, one, slices)


def parse(text: str) -> Target:
  """Parses `v3:16x16`, `v3-512`, `2xv5e:16x16` for two slices, or `h100x8`.

  Raises:
    ValueError: there is no such slice or machine; lists the choices.
  """
  if gpu := re.fullmatch(rf'({"|".join(GPUS)})(?:x(\d+))?', text):
    count = int(gpu[2] or 1)
    if not 1 <= count <= MOST:
      raise ValueError(
        f'{text!r}: plans are for the GPUs of one machine, 1 to {MOST}:'
        f' {gpu[1]}x1 to {gpu[1]}x{MOST}.'
      )
    return Target(gpu[1], count)
  several = re.fullmatch(r'([1-9]\d*)x([a-z].*)', text)
  if not several:
    return _joined(topology.parse(text))
  return _joined(topology.parse(several[2]), int(several[1]))


def of_generation(name: str) -> list[Target]:
  """Returns a generation's slices, or a GPU's usual machines, by size.

  Raises:
    ValueError: there is no such generation or GPU.
  """
  if name in GPUS:
    return [Target(name, 2**i) for i in range(MOST.bit_length())]
  if name not in topology.GENERATIONS:
    raise ValueError(
      f'auto:{name}: no TPU generation is called {name!r}; choose one of'
      f' {", ".join(topology.GENERATIONS)}, or a GPU: {", ".join(GPUS)}.'
    )
  found = [_joined(s) for s in topology.slices() if s.generation.name == name]
  return sorted(found, key=lambda target: target.chips)


def have_compiler() -> bool:
  """Returns whether libtpu is installed, without loading it."""
  return importlib.util.find_spec('libtpu') is not None


def gpu_compiler() -> str | None:
  """Names the GPU compiler's package and version; None if there is none."""
  for name in ('jax-cuda13-plugin', 'jax-cuda12-plugin'):
    if importlib.util.find_spec(name.replace('-', '_')):
      return f'{name} {importlib.metadata.version(name)}'
  return None


def leave_hardware_alone() -> None:
  """Keeps this process off accelerators; call it before JAX is first used.

  Ahead-of-time compilation needs no accelerator, and on a TPU VM a training
  run may be using the TPU.
  """
  for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')


def compile_only(target: Target) -> list[jax.Device]:
  """Returns the devices of a target, which need not exist.

  Raises:
    ValueError: the compiler is not installed or does not know the devices.
  """
  if target.slice:
    compiler, name = 'libtpu', str(target.slice)
    if not have_compiler():
      raise ValueError(INSTALL)
    options = {'platform': 'tpu'}
    if target.kind in _MEGACORE:
      options['chip_config_name'] = 'megacore'
    if target.slice.chips_per_host == 1:
      options['chips_per_host_bounds'] = (1, 1, 1)
    if target.slices > 1:
      options['num_slices'] = target.slices
  else:
    compiler, name = gpu_compiler(), ''
    if not compiler:
      raise ValueError(f'--topology={target}: {INSTALL_GPU}')
    jax_internals.assume_gpu(GPUS[target.kind].capability)
    options = {
      'platform': 'cuda',
      'target_config': GPUS[target.kind].description,
      'topology': f'1x1x{target.devices}',  # Groups, machines, GPUs.
    }
  try:
    devices = topologies.get_topology_desc(name, **options).devices
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    raise ValueError(f'{compiler} has no devices for {target}: {error}') from (
      error
    )
  if len(devices) != target.devices:
    raise ValueError(
      f'{compiler} shows {len(devices)} devices for {target}, but vit_jax'
      f' expects {target.devices}. Install the version of launch/locks/.'
    )
  return devices


def check(config: ml_collections.ConfigDict, target: Target) -> None:
  """Checks the mesh and the batch against a slice; needs no devices.

  Raises:
    ValueError: the mesh does not fit the slice or leaves a part of it unused,
      or the batch cannot be split evenly over its devices.
  """
  slices = target.slices
  shape = mesh_lib.axis_sizes(
    target.devices, *(config.mesh[axis] for axis in mesh_lib.AXES), slices
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
