"""Facts of TPUs and GPUs, and the peak rate of this machine's device.

Every figure is for one JAX device: a core on v2 and v3, one of the two chiplets
on TPU7x, a whole chip on v4, v5e, v5p and v6e.

Sources for TPUs, per chip; the table halves them if a device is half a chip:
  peak and bandwidth: docs.cloud.google.com/tpu/docs/{v2,v3,v4,v5e,
    v5p,v6e,tpu7x}, the tables "Key specifications".
  interconnect, in one direction over all links: v2 and v3 4 x 496 and
    4 x 656 Gbit/s (Jouppi et al., CACM 63(7), 2020); v4 6 x 50 GB/s
    (arXiv:2304.01433); the others half of the bidirectional figure of those
    pages.
  network between slices: TPU7x, v6e and v5p from the page on TPU7x; v5e from
    its own page (6.4 Tbit/s a pod of 256). No source was found for v2 to v4;
    they get v5e's figure, the smallest.
  clock: v2 to v4 from those papers; the others are the peak divided by the
    operations in a cycle: 131,072 on v5e, 262,144 on v5p, 524,288 on v6e and
    TPU7x. With these clocks, the cycles that libtpu 0.0.42 states for a product
    of 16,384 x 16,384 matrices give 98-99% of the peak on v2 and v3, 92-94% on
    v4 to v5p, 78% on v6e and 85% on TPU7x. With half the operations, the rate
    would exceed the peak.
  usable memory: the limit that libtpu 0.0.42 names when it refuses a program
    that is too large ("exceeds available HBM (15.48G)"), for each generation.
    The limit for v5p exceeds the 95 GiB of its page.

Sources for GPUs: NVIDIA's data sheets of the SXM modules (peak without
sparsity, main memory's bandwidth, NVLink: half of the figure for both
directions), and NVIDIA's tables of compute capabilities (the other figures).
"""

import dataclasses
import os
import re

# Share of the links' bandwidth that long transfers reach between TPUs.
LINK_EFFICIENCY = 0.6
# By default, JAX allocates this share of a GPU's memory; launch/README.md.
_FRACTION = 0.75


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device.

  Attributes:
    device_kind: JAX's name of the device.
    clock_mhz: clock of the matrix units; None if the compiler states no cycles.
    peak_flops: bfloat16 operations a second; a multiply-accumulate is two.
    hbm_usable_gib: main memory that the compiler gives a program.
    hbm_bytes_per_second: bandwidth of the main memory.
    interconnect_bytes_per_second: bandwidth of the whole chip, in one direction
      over all links. Not halved if a device is half a chip: data that a group
      reduces or gathers crosses the links of a chip once for both devices.
    torus_dimensions: number of dimensions that share the links equally; 1 for
      devices that are all linked with each other.
    network_bytes_per_second: one device's share of the data center network
      between slices, in one direction.
    link_efficiency: share of both networks' bandwidth that is reckoned with.
  """

  device_kind: str
  clock_mhz: float | None
  peak_flops: float
  hbm_usable_gib: float
  hbm_bytes_per_second: float
  interconnect_bytes_per_second: float
  torus_dimensions: int
  network_bytes_per_second: float
  link_efficiency: float = LINK_EFFICIENCY

  @property
  def hbm_usable_bytes(self) -> int:
    return int(self.hbm_usable_gib * 2**30)


# By the generation, as in the names of slices ('v3' in 'v3:2x2').
CHIPS = {
  'v2': Chip('TPU v2', 700, 22.9e12, 7.48, 350e9, 248e9, 2, 25e9 / 16),
  'v3': Chip('TPU v3', 940, 61.6e12, 15.48, 450e9, 328e9, 2, 25e9 / 16),
  'v4': Chip('TPU v4', 1050, 275.2e12, 30.5, 1200e9, 300e9, 3, 25e9 / 8),
  'v5e': Chip('TPU v5 lite', 1500, 196.6e12, 15.75, 819e9, 2e11, 2, 25e9 / 8),
  'v5p': Chip('TPU v5', 1750, 458.8e12, 95.74, 2765e9, 600e9, 3, 50e9 / 8),
  'v6e': Chip('TPU v6 lite', 1750, 917.5e12, 31.25, 1638e9, 4e11, 2, 1e11 / 8),
  'tpu7x': Chip('TPU7x', 2200, 1153.4e12, 94.75, 3690e9, 6e11, 3, 1e11 / 16),
}


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What the GPU compiler has to know of a GPU, and what a plan does.

  Attributes:
    device_kind: JAX's name of the device.
    capability: CUDA's compute capability.
    cores: streaming multiprocessors.
    lanes: float32 units of a core.
    clock_ghz: highest clock.
    shared_kib: shared memory of a core.
    l2_mib: second-level cache.
    memory_bytes: main memory.
    bytes_per_second: bandwidth of the main memory.
    links_bytes_per_second: NVLink in one direction, all links.
  """

  device_kind: str
  capability: tuple[int, int]
  cores: int
  lanes: int
  clock_ghz: float
  shared_kib: int
  l2_mib: int
  memory_bytes: int
  bytes_per_second: int
  links_bytes_per_second: float

  @property
  def description(self) -> str:
    """What the compiler has to know, as its text format has it."""
    major, minor = self.capability
    # A block of threads gets all of a core's shared memory but 1 KiB.
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_kib * 2**10}
  threads_per_core_limit: 2048
  core_count: {self.cores}
  fpus_per_core: {self.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.bytes_per_second}
  l2_cache_size: {self.l2_mib * 2**20}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  shared_memory_per_block_optin: {(self.shared_kib - 1) * 2**10}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.device_kind}"
"""

  @property
  def chip(self) -> Chip:
    """The facts that a plan needs; the memory is what JAX allocates."""
    share = os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION') or _FRACTION
    return Chip(
      self.device_kind,
      clock_mhz=None,
      peak_flops=peak_flops(self.device_kind),
      hbm_usable_gib=float(share) * self.memory_bytes / 2**30,
      hbm_bytes_per_second=self.bytes_per_second,
      interconnect_bytes_per_second=self.links_bytes_per_second,
      torus_dimensions=1,
      network_bytes_per_second=0,
      link_efficiency=1.0,
    )


_A100, _H100 = 'NVIDIA A100-SXM4-80GB', 'NVIDIA H100 80GB HBM3'
# Capability, cores, lanes, clock, shared memory and cache of a generation.
_AMPERE = ((8, 0), 108, 64, 1.41, 164, 40)
_HOPPER = ((9, 0), 132, 128, 1.98, 228, 50)
GPUS = {
  'a100': Gpu(_A100, *_AMPERE, 85_100_068_864, 2039_040_000_000, 3e11),
  'h100': Gpu(_H100, *_HOPPER, 84_942_979_072, 3352_320_000_000, 4.5e11),
  'h200': Gpu('NVIDIA H200', *_HOPPER, 151_397_597_184, 4800 * 10**9, 4.5e11),
}

# Words in JAX's device kind -> dense bfloat16 operations a second. The first
# match counts, so longer names come first. The source is NVIDIA's data sheet of
# each GPU (H100, H200: SXM; half of the figure with sparsity).
_GPU_PEAKS = {
  'H200 NVL': 835e12,
  'H200': 989e12,
  'H100 PCIe': 756e12,
  'H100 NVL': 835e12,
  'H100': 989e12,
  'B200': 2250e12,
  'A100': 312e12,
  'L40S': 362e12,
  'L4': 121e12,
  'A10G': 70e12,
  'V100': 125e12,
  'T4': 65e12,
}


def generation_of(device_kind: str) -> str | None:
  """Returns the generation of the TPU that JAX calls so; None for others."""
  for name, chip in CHIPS.items():
    # Some versions of JAX say 'TPU v5e', others 'TPU v5 lite'.
    if device_kind in (chip.device_kind, f'TPU {name}'):
      return name
  return None


def name_of(device_kind: str) -> str:
  """Returns one name for all of JAX's names of a device, such as 'v5e'."""
  return generation_of(device_kind) or device_kind


def peak_flops(device_kind: str) -> float | None:
  """Returns the peak operations a second of one JAX device; None if unknown.

  Args:
    device_kind: `jax.Device.device_kind`, such as 'TPU v5 lite' or 'NVIDIA L4'.
  """
  if generation := generation_of(device_kind):
    return CHIPS[generation].peak_flops
  for name, peak in _GPU_PEAKS.items():
    # Match whole words only: an L4 is not an L40.
    if re.search(rf'\b{name}\b', device_kind):
      return peak
  return None
