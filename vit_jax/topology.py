"""The facts of TPU slices: `python -m vit_jax.topology v3-512`.

A slice has two kinds of names:

  v3-512      the accelerator type, as Cloud TPU takes it
  v3:16x16    generation and topology (chips along each axis), as JAX's
              compile-only topologies take it
  v5litepod-16, v5e-16, v5e:4x4       Cloud TPU calls v5e v5litepod

The number in an accelerator type counts TensorCores: two a chip for v2 to v4,
v5p and tpu7x, one a chip for v5e and v6e. This module knows only the standard
shapes.

Sources: cloud.google.com/tpu/docs, one page a generation (v2 ... v6e, tpu7x:
shapes, hosts), tpu/docs/runtimes (images), and
cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (machine types and
labels).
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Generation:
  """One kind of TPU.

  Attributes:
    name: the name, as in `v5e:4x4`.
    accelerator: the prefix of its accelerator types; '' if the Cloud TPU API
      does not offer it (GKE does).
    cores_per_chip: TensorCores in a chip.
    devices_per_chip: how many of `jax.devices()` a chip is on the hardware.
      From v4 to v6e a device is a chip, but libtpu's compile-only v4 topologies
      show cores.
    runtime_version: software image of its TPU VMs.
    gke_accelerator: value of the node label
      `cloud.google.com/gke-tpu-accelerator`; '' if GKE does not offer it.
    machine_type: machine type of GKE's nodes, with `{chips}` for the chips of a
      node.
    topologies: the standard shapes, ascending.
  """

  name: str
  accelerator: str
  cores_per_chip: int
  devices_per_chip: int
  runtime_version: str
  gke_accelerator: str
  machine_type: str
  topologies: tuple[str, ...]


_2D = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_V3 = ('2x2', '4x4', '4x8', '8x8', '8x16', '16x16', '16x32', '32x32')
_V4 = (
  *('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8'),
  *('8x8x12', '8x8x16', '8x16x16'),
)
_V5P = (*_V4, '12x12x12', '12x16x16', '16x16x16', '16x16x24')

GENERATIONS = {
  generation.name: generation
  for generation in (
    Generation(
      name='v2',
      accelerator='v2',
      cores_per_chip=2,
      devices_per_chip=2,
      runtime_version='tpu-ubuntu2204-base',
      gke_accelerator='',
      machine_type='',
      topologies=('2x2', '4x4', '8x8', '8x16', '16x16'),
    ),
    Generation(
      name='v3',
      accelerator='v3',
      cores_per_chip=2,
      devices_per_chip=2,
      runtime_version='tpu-ubuntu2204-base',
      gke_accelerator='tpu-v3-slice',
      machine_type='ct3p-hightpu-{chips}t',
      topologies=_V3,
    ),
    Generation(
      name='v4',
      accelerator='v4',
      cores_per_chip=2,
      devices_per_chip=1,
      runtime_version='tpu-ubuntu2204-base',
      gke_accelerator='tpu-v4-podslice',
      machine_type='ct4p-hightpu-{chips}t',
      topologies=_V4,
    ),
    Generation(
      name='v5e',
      accelerator='v5litepod',
      cores_per_chip=1,
      devices_per_chip=1,
      runtime_version='v2-alpha-tpuv5-lite',
      gke_accelerator='tpu-v5-lite-podslice',
      machine_type='ct5lp-hightpu-{chips}t',
      topologies=_2D,
    ),
    Generation(
      name='v5p',
      accelerator='v5p',
      cores_per_chip=2,
      devices_per_chip=1,
      runtime_version='v2-alpha-tpuv5',
      gke_accelerator='tpu-v5p-slice',
      machine_type='ct5p-hightpu-{chips}t',
      topologies=_V5P,
    ),
    Generation(
      name='v6e',
      accelerator='v6e',
      cores_per_chip=1,
      devices_per_chip=1,
      runtime_version='v2-alpha-tpuv6e',
      gke_accelerator='tpu-v6e-slice',
      machine_type='ct6e-standard-{chips}t',
      topologies=_2D,
    ),
    Generation(
      name='tpu7x',
      accelerator='',
      cores_per_chip=2,
      devices_per_chip=2,
      runtime_version='',
      gke_accelerator='tpu7x',
      machine_type='tpu7x-standard-{chips}t',
      topologies=_V5P,
    ),
  )
}


@dataclasses.dataclass(frozen=True)
class Slice:
  """A group of connected chips of one pod, the unit that one rents."""

  generation: Generation
  topology: str

  def __str__(self) -> str:
    """Returns generation and topology as JAX takes them, `v3:16x16`."""
    return f'{self.generation.name}:{self.topology}'

  @property
  def accelerator_type(self) -> str:
    """Returns gcloud's name, `v3-512`; '' if the Cloud TPU API has none."""
    if not self.generation.accelerator:
      return ''
    return f'{self.generation.accelerator}-{self.cores}'

  @property
  def chips(self) -> int:
    return math.prod(map(int, self.topology.split('x')))

  @property
  def cores(self) -> int:
    """Number of TensorCores, the unit of core-days."""
    return self.chips * self.generation.cores_per_chip

  @property
  def devices(self) -> int:
    """The value of `len(jax.devices())` on the hardware."""
    return self.chips * self.generation.devices_per_chip

  @property
  def chips_per_host(self) -> int:
    # Up to eight chips of v5e or v6e are one machine. Larger slices consist of
    # machines with four chips.
    return self.chips if self.chips <= 8 and self._flat else min(4, self.chips)

  @property
  def hosts(self) -> int:
    """Number of machines ("workers"); each has one process of a run."""
    return self.chips // self.chips_per_host

  @property
  def machine_type(self) -> str:
    """Machine type of GKE's nodes; '' if GKE does not offer the generation."""
    # A single v3 machine has a different type than the machines of a v3 slice.
    if self.generation.name == 'v3' and self.hosts == 1:
      return 'ct3-hightpu-4t'
    return self.generation.machine_type.format(chips=self.chips_per_host)

  @property
  def gke_accelerator(self) -> str:
    """The value of GKE's node label; '' if GKE does not offer it."""
    if self.generation.name == 'v3' and self.hosts == 1:
      return 'tpu-v3-device'
    return self.generation.gke_accelerator

  @property
  def _flat(self) -> bool:
    return self.generation.topologies is _2D


def slices() -> list[Slice]:
  """Returns all known slices by generation, small to large."""
  return [
    Slice(generation, topology)
    for generation in GENERATIONS.values()
    for topology in generation.topologies
  ]


def parse(text: str) -> Slice:
  """Returns the slice of a name.

  Args:
    text: an accelerator type (`v3-512`) or generation and topology
      (`v3:16x16`).

  Raises:
    ValueError: there is no such slice; lists the choices.
  """
  choices = {}
  for found in slices():
    generation = found.generation
    names = {str(found), found.accelerator_type}
    if generation.accelerator != generation.name:
      names |= {f'{generation.name}-{found.cores}'}
      if generation.accelerator:
        names |= {f'{generation.accelerator}:{found.topology}'}
    choices |= dict.fromkeys(names - {''}, found)
  if text in choices:
    return choices[text]
  wanted = text.replace(':', '-').partition('-')[0]
  listed = [
    found
    for found in slices()
    if wanted
    and wanted in (found.generation.name, found.generation.accelerator)
  ]
  raise ValueError(
    f'{text!r} is not a known TPU slice. Expected an accelerator type or'
    ' generation and topology: '
    + ', '.join(
      f'{found.accelerator_type} ({found})'
      if found.accelerator_type
      else str(found)
      for found in listed or slices()
    )
    + '.'
  )


def describe(found: Slice) -> str:
  """Returns the facts of a slice, one a line."""
  facts = {
    'topology': str(found),
    'accelerator type': found.accelerator_type or 'none (GKE only)',
    'chips': found.chips,
    'TensorCores': found.cores,
    'JAX devices': found.devices,
    'hosts': f'{found.hosts} with {found.chips_per_host} chip(s) each',
    'TPU VM image': found.generation.runtime_version or 'none (GKE only)',
    'GKE machine type': found.machine_type or 'none (Cloud TPU only)',
    'GKE accelerator': found.gke_accelerator or 'none (Cloud TPU only)',
  }
  return '\n'.join(f'{name:17} {value}' for name, value in facts.items())


def main(names: list[str]) -> None:
  print('\n\n'.join(describe(parse(name)) for name in names))


if __name__ == '__main__':
  # Imported only here: the launch scripts import this module on machines that
  # have only the standard library.
  from vit_jax.runtime import command_line

  command_line.run(main, arguments='slices, such as v3-512 or v4:2x2x4')
