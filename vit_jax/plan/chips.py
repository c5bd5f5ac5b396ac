"""The TPU generations, as the compiler's topologies show them.

Every figure is for one JAX device of `topologies.get_topology_desc`: a core on
v2, v3 and v4, one of the two chiplets on TPU7x, a whole chip on v5e, v5p and
v6e. On the hardware, and if `devices` asks for it, JAX shows a v4 chip of two
cores as one device; `devices.Target.chip` has the figures of such a device.

Sources, per chip; the table halves them for chips with two devices:
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
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device.

  Attributes:
    name: the generation, as in the names of slices ('v3' in 'v3:2x2').
    device_kind: JAX's name of the device.
    device: 'core', 'chiplet' or 'chip'.
    devices_per_chip: 1 or 2.
    clock_mhz: clock of the matrix units.
    peak_flops: bfloat16 operations a second; a multiply-accumulate is two.
    hbm_usable_bytes: main memory that the compiler gives a program.
    hbm_bytes_per_second: bandwidth of the main memory.
    interconnect_bytes_per_second: bandwidth of the whole chip, in one direction
      over all links. Not halved for two devices on a chip: data that a group
      reduces or gathers crosses the links of a chip once for both devices.
    torus_dimensions: number of dimensions that share the links equally.
    network_bytes_per_second: one device's share of the data center network
      between slices, in one direction.
  """

  name: str
  device_kind: str
  device: str
  devices_per_chip: int
  clock_mhz: float
  peak_flops: float
  hbm_usable_bytes: int
  hbm_bytes_per_second: float
  interconnect_bytes_per_second: float
  torus_dimensions: int
  network_bytes_per_second: float


def _chip(
  name: str,
  device_kind: str,
  device: str,
  clock_mhz: float,
  peak_tflops: float,
  usable_gib: float,
  gb_per_second: float,
  interconnect_gb_per_second: float,
  torus_dimensions: int,
  network_gbit_per_second: float,
) -> Chip:
  devices_per_chip = 1 if device == 'chip' else 2
  return Chip(
    name,
    device_kind,
    device,
    devices_per_chip,
    clock_mhz,
    peak_tflops * 1e12,
    int(usable_gib * 2**30),
    gb_per_second * 1e9,
    interconnect_gb_per_second * 1e9,
    torus_dimensions,
    network_gbit_per_second / 8 * 1e9 / devices_per_chip,
  )


CHIPS = {
  chip.name: chip
  for chip in (
    _chip('v2', 'TPU v2', 'core', 700, 22.9, 7.48, 350, 248, 2, 25),
    _chip('v3', 'TPU v3', 'core', 940, 61.6, 15.48, 450, 328, 2, 25),
    _chip('v4', 'TPU v4', 'core', 1050, 137.6, 15.25, 600, 300, 3, 25),
    _chip('v5e', 'TPU v5 lite', 'chip', 1500, 196.6, 15.75, 819, 200, 2, 25),
    _chip('v5p', 'TPU v5', 'chip', 1750, 458.8, 95.74, 2765, 600, 3, 50),
    _chip('v6e', 'TPU v6 lite', 'chip', 1750, 917.5, 31.25, 1638, 400, 2, 100),
    _chip('tpu7x', 'TPU7x', 'chiplet', 2200, 1153.4, 94.75, 3690, 600, 3, 100),
  )
}


def get(name: str) -> Chip:
  """Returns the chip of a generation ('v3'), a slice ('v3:4x4') or JAX's kind.

  Raises:
    ValueError: the name is unknown.
  """
  generation = name.partition(':')[0]
  if generation in CHIPS:
    return CHIPS[generation]
  for chip in CHIPS.values():
    # Some versions of JAX say 'TPU v5e', others 'TPU v5 lite'.
    if name in (chip.device_kind, f'TPU {chip.name}'):
      return chip
  raise ValueError(
    f'no TPU generation is called {name!r}: choose one of {list(CHIPS)},'
    ' as in v3:4x4.'
  )
