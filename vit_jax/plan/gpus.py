"""GPUs that a run is planned for: one, or several in one machine.

XLA's GPU compiler comes with JAX's plugin and needs no GPU, only a description
of one. Its programs state no times; `roofline` estimates them. This module
never opens a GPU.

Sources: NVIDIA's data sheets of the SXM modules (peak without sparsity, main
memory's bandwidth, NVLink: half of the figure for both directions), and
NVIDIA's tables of compute capabilities (the other figures).
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import re

import jax
from jax.experimental import topologies

from vit_jax.plan import chips as chips_lib
from vit_jax.plan import estimate as estimate_lib
from vit_jax.plan import peaks, roofline
from vit_jax.runtime import jax_internals

INSTALL = (
  'The GPU compiler is not installed. Install it on Linux with pip install'
  ' "vit-paper-jax[cuda]" (or "jax[cuda12]"). No GPU is needed.'
)
# Packages with the compiler, and what they are called to import them.
PLUGINS = {
  'jax-cuda13-plugin': 'jax_cuda13_plugin',
  'jax-cuda12-plugin': 'jax_cuda12_plugin',
}
# NVLink joins this many GPUs of one machine.
MOST = 8
# By default, JAX allocates this share of a GPU's memory; launch/README.md.
_FRACTION = 0.75
# On a GPU the compiler tries which kernel of a product is fastest, and takes
# cuBLAS's. Without one it would take its own (Triton).
_OPTIONS = {'xla_gpu_enable_triton_gemm': False}


@dataclasses.dataclass(frozen=True)
class Gpu:
  """A kind of GPU.

  Attributes:
    device_kind: JAX's name of the device.
    capability: CUDA's compute capability.
    cores: streaming multiprocessors.
    lanes: float32 units of a core.
    clock_ghz: highest clock.
    shared_bytes: shared memory of a core.
    l2_bytes: second-level cache.
    memory_bytes: main memory.
    memory_bytes_per_second: bandwidth of the main memory.
    link_bytes_per_second: NVLink in one direction, all links.
  """

  device_kind: str
  capability: tuple[int, int]
  cores: int
  lanes: int
  clock_ghz: float
  shared_bytes: int
  l2_bytes: int
  memory_bytes: int
  memory_bytes_per_second: int
  link_bytes_per_second: int

  @property
  def description(self) -> str:
    """Returns what the compiler has to know, as its text format has it."""
    major, minor = self.capability
    # A block of threads gets all of a core's shared memory but 1 KiB.
    optin = self.shared_bytes - 1024
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_bytes}
  threads_per_core_limit: 2048
  core_count: {self.cores}
  fpus_per_core: {self.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.memory_bytes_per_second}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  shared_memory_per_block_optin: {optin}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.device_kind}"
"""


GPUS = {
  'a100': Gpu(
    device_kind='NVIDIA A100-SXM4-80GB',
    capability=(8, 0),
    cores=108,
    lanes=64,
    clock_ghz=1.41,
    shared_bytes=164 * 2**10,
    l2_bytes=40 * 2**20,
    memory_bytes=85_100_068_864,
    memory_bytes_per_second=2_039_040_000_000,
    link_bytes_per_second=300_000_000_000,
  ),
  'h100': Gpu(
    device_kind='NVIDIA H100 80GB HBM3',
    capability=(9, 0),
    cores=132,
    lanes=128,
    clock_ghz=1.98,
    shared_bytes=228 * 2**10,
    l2_bytes=50 * 2**20,
    memory_bytes=84_942_979_072,
    memory_bytes_per_second=3_352_320_000_000,
    link_bytes_per_second=450_000_000_000,
  ),
  'h200': Gpu(
    device_kind='NVIDIA H200',
    capability=(9, 0),
    cores=132,
    lanes=128,
    clock_ghz=1.98,
    shared_bytes=228 * 2**10,
    l2_bytes=50 * 2**20,
    memory_bytes=151_397_597_184,
    memory_bytes_per_second=4_800_000_000_000,
    link_bytes_per_second=450_000_000_000,
  ),
}


@dataclasses.dataclass(frozen=True)
class Target:
  """GPUs of one kind in one machine, with the interface of `devices.Target`."""

  generation: str
  devices: int = 1
  platform = 'gpu'
  slices = 1
  cores = None  # They are not TensorCores of TPUs.
  device = 'GPU'
  options = _OPTIONS

  def __str__(self) -> str:
    """Returns the name that `parse` takes: `h100x8`."""
    return f'{self.generation}x{self.devices}'

  @property
  def chips(self) -> int:
    return self.devices

  @property
  def chip(self) -> chips_lib.Chip:
    """The facts of one GPU."""
    gpu = GPUS[self.generation]
    return chips_lib.Chip(
      name=self.generation,
      device_kind=gpu.device_kind,
      device=self.device,
      devices_per_chip=1,
      clock_mhz=1e3 * gpu.clock_ghz,
      peak_flops=peaks.of_device_kind(gpu.device_kind),
      hbm_usable_bytes=int(memory_fraction() * gpu.memory_bytes),
      hbm_bytes_per_second=gpu.memory_bytes_per_second,
      interconnect_bytes_per_second=gpu.link_bytes_per_second,
      torus_dimensions=1,
      network_bytes_per_second=0,
    )

  def open(self) -> list[jax.Device]:
    """Returns the GPUs, which need not exist.

    Raises:
      ValueError: the compiler is not installed, or knows no such GPUs.
    """
    if not plugin():
      raise ValueError(f'--topology={self}: {INSTALL}')
    gpu = GPUS[self.generation]
    jax_internals.assume_gpu(gpu.capability)
    try:
      return topologies.get_topology_desc(
        platform='cuda',
        target_config=gpu.description,
        topology=f'1x1x{self.devices}',  # Groups, machines, GPUs.
      ).devices
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
      raise ValueError(
        f'The GPU compiler ({plugin()}) has no devices for {self}: {error}'
      ) from error

  def estimate(self, module) -> estimate_lib.Estimate:
    """Estimates the time of a compiled program; see `roofline`."""
    return roofline.estimate(module, self.chip)


def parse(text: str) -> Target | None:
  """Parses `h100x8`, or `h100` for one; None if the text names no GPU.

  Raises:
    ValueError: there is no machine with so many of them.
  """
  found = re.fullmatch(rf'({"|".join(GPUS)})(?:x(\d+))?', text)
  if not found:
    return None
  count = int(found[2] or 1)
  if not 1 <= count <= MOST:
    raise ValueError(
      f'{text!r}: plans are for the GPUs of one machine, 1 to {MOST}:'
      f' {found[1]}x1 to {found[1]}x{MOST}.'
    )
  return Target(found[1], count)


def of_generation(name: str) -> list[Target]:
  """Returns the machines with this GPU that are usual, by size."""
  return [Target(name, 2**i) for i in range(MOST.bit_length())]


def plugin() -> str | None:
  """Names the compiler's package and version; None if there is none."""
  for name, module in PLUGINS.items():
    if importlib.util.find_spec(module):
      return f'{name} {importlib.metadata.version(name)}'
  return None


def memory_fraction() -> float:
  """Returns the share of a GPU's memory that JAX allocates."""
  given = os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION', '')
  try:
    return float(given) if given else _FRACTION
  except ValueError as error:
    raise ValueError(
      f'XLA_PYTHON_CLIENT_MEM_FRACTION={given} must be a number, such as 0.9.'
    ) from error
