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
shapes, hosts) and tpu/docs/runtimes (images).
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Generation:
  """One kind of TPU.

  Attributes:
    name: the name, as in `v5e:4x4`.
    topologies: the standard shapes, ascending.
    runtime_version: software image of its TPU VMs.
    accelerator: the prefix of its accelerator types; '' if the Cloud TPU API
      does not offer it (GKE does).
    cores_per_chip: TensorCores in a chip.
    devices_per_chip: how many of `jax.devices()` a chip is on the hardware.
      From v4 to v6e a device is a chip, but libtpu's compile-only v4 topologies
      show cores.
  """

  name: str
  topologies: tuple[str, ...]
  runtime_version: str
  accelerator: str
  cores_per_chip: int
  devices_per_chip: int


_2D = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_V2 = ('2x2', '4x4', '8x8', '8x16', '16x16')
_V3 = ('2x2', '4x4', '4x8', '8x8', '8x16', '16x16', '16x32', '32x32')
_V4 = (
  *('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8'),
  *('8x8x12', '8x8x16', '8x16x16'),
)
_V5P = (*_V4, '12x12x12', '12x16x16', '16x16x16', '16x16x24')

_UBUNTU = 'tpu-ubuntu2204-base'
# The values of `Generation`, in its order.
GENERATIONS = {
  row[0]: Generation(*row)
  for row in (
    ('v2', _V2, _UBUNTU, 'v2', 2, 2),
    ('v3', _V3, _UBUNTU, 'v3', 2, 2),
    ('v4', _V4, _UBUNTU, 'v4', 2, 1),
    ('v5e', _2D, 'v2-alpha-tpuv5-lite', 'v5litepod', 1, 1),
    ('v5p', _V5P, 'v2-alpha-tpuv5', 'v5p', 2, 1),
    ('v6e', _2D, 'v2-alpha-tpuv6e', 'v6e', 1, 1),
    ('tpu7x', _V5P, '', '', 2, 2),
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
    names = (found.generation.name, found.generation.accelerator)
    for name in filter(None, names):
      choices[f'{name}:{found.topology}'] = found
      choices[f'{name}-{found.cores}'] = found
  if text in choices:
    return choices[text]
  kind = text.replace(':', '-').partition('-')[0]
  listed = [x for x in choices if x.startswith((f'{kind}-', f'{kind}:'))]
  raise ValueError(
    f'{text!r} is not a known TPU slice. Expected an accelerator type or'
    f' generation and topology: {", ".join(listed or choices)}.'
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
  }
  return '\n'.join(f'{name:17} {value}' for name, value in facts.items())


def main(names: list[str]) -> None:
  print('\n\n'.join(describe(parse(name)) for name in names))


if __name__ == '__main__':
  # Imported only here: the launch scripts import this module on machines that
  # have only the standard library.
  from vit_jax.runtime import command_line

  command_line.run(main, arguments='slices, such as v3-512 or v4:2x2x4')
