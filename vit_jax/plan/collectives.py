"""Bytes, groups and time of collective operations in a compiled program."""

import dataclasses
import math
import re
from collections.abc import Sequence

from vit_jax.plan import hlo
from vit_jax.plan.chips import Chip

KINDS = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
)
# The part of a collective that leaves a slice. A runtime on the host
# ("megascale") sends its data over the data center network.
BETWEEN_SLICES = 'between-slices'
_MEGASCALE = '_xla_megascale_transfer_type='
# The compiler's algorithms that send around one ring, and so use only the links
# of one dimension of the torus. They serve groups of less than all devices;
# 'StrategyND' sends along all dimensions at once.
_RING = re.compile(r'StrategyRing|"emitter":"1D')
# An asynchronous collective appears in the program several times: where it
# starts, in the fusions that overlap it, and where it ends.
_STARTS_BESIDE = 'custom_call_target="AsyncCollectiveStart"'
# Share of the links' bandwidth that long transfers reach.
LINK_EFFICIENCY = 0.6

_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(.*?\))? \{([^}]*)\}'
)
_MESH_SIZE = re.compile(r"'([^']+)'=(\d+)")
# A mesh axis, or a part of one: `:(size of the parts before it)size`.
_MESH_AXIS = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective; its start and its end together are one collective.

  Attributes:
    kind: one of KINDS, or BETWEEN_SLICES.
    name: name of the instruction.
    op_name: path of the JAX operation it comes from.
    bytes: bytes of its larger side on one device, in one execution: the output
      of an all-gather, the input of the others.
    group_size: devices that take part together; 0 if not stated.
    times: executions in one call.
    seconds: time of all executions in one call.
  """

  kind: str
  name: str
  op_name: str
  bytes: int
  group_size: int
  times: int
  seconds: float


def kind(instruction: hlo.Instruction) -> str | None:
  """Returns the kind of a collective or its start; None for other opcodes."""
  if instruction.opcode == 'send' and _MEGASCALE in instruction.attributes:
    return BETWEEN_SLICES
  name = instruction.opcode.removesuffix('-start')
  return name if name in KINDS else None


def ends(instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction only ends a collective."""
  if instruction.opcode == 'recv':
    return _MEGASCALE in instruction.attributes
  name, dash, last = instruction.opcode.rpartition('-')
  return bool(dash) and last == 'done' and name in KINDS


def channel_beside(inside: Sequence[hlo.Instruction]) -> str | None:
  """Returns the channel of an asynchronous collective that a fusion starts.

  Args:
    inside: the parts of the fusion.

  Returns:
    The channel, which the following fusions name for the same collective; None
    if the fusion starts no collective.
  """
  if not any(_STARTS_BESIDE in part.attributes for part in inside):
    return None
  started = next((part for part in inside if kind(part)), None)
  return started and started.attribute('channel_id')


def asynchronous(
  instruction: hlo.Instruction, inside: Sequence[hlo.Instruction]
) -> list[str]:
  """Returns keys of the asynchronous collectives that an instruction is of.

  Args:
    instruction: any instruction: the start of a collective, a fusion that runs
      beside it, or its end.
    inside: the parts of a fusion, or the instruction itself.

  Returns:
    Keys, equal for all instructions of one collective.
  """
  if instruction.opcode.endswith('-start'):
    return [instruction.name]
  if instruction.opcode.endswith('-done'):
    return list(instruction.operands[:1])
  if instruction.opcode != 'fusion':
    return []
  channels = [part.attribute('channel_id') for part in inside if kind(part)]
  return [channel for channel in channels if channel]


def cost(
  module: hlo.Module,
  instruction: hlo.Instruction,
  collective: hlo.Instruction,
  chip: Chip,
  times: int,
  link_efficiency: float,
) -> Collective:
  """Estimates the time of a collective.

  An all-reduce moves 2 x its bytes over the links of a torus, and (n-1)/n of
  that between n GPUs. An all-gather, a reduce-scatter and an all-to-all among n
  devices move (n-1)/n of their bytes.
  A permutation and a broadcast move their bytes. If the compiler names a ring,
  only the links of one dimension of the torus carry the data. Transfers between
  slices move their bytes over the data center network, twice for an all-reduce.
  The estimate adds no latency and subtracts no overlap with computation.

  Args:
    module: the program.
    instruction: the instruction in the program: the collective or its fusion.
    collective: the collective itself.
    chip: the device.
    times: executions in one call.
    link_efficiency: share of the networks' bandwidth that is reached.
  """
  name = kind(collective)
  if name == BETWEEN_SLICES:
    size = collective.arrays[0].bytes
    reduced = f'{_MEGASCALE}"ALL_REDUCE"' in collective.attributes
    bandwidth = link_efficiency * chip.network_bytes_per_second
    seconds = times * size * (2 if reduced else 1) / bandwidth
    return Collective(
      name, instruction.name, collective.op_name, size, 0, times, seconds
    )
  # The compiler writes a reduce-scatter as a fusion of an all-reduce and a
  # slice, with 'scatter' in its name.
  fused = instruction.called.get('calls', ())
  if name == 'all-reduce' and any('scatter' in part for part in fused):
    name = 'reduce-scatter'
  size = sum(operand.bytes for operand in module.operands(collective))
  group = group_size(module, collective)
  if name == 'all-gather':
    size *= max(group, 1)
  if group == 1:
    moved = 0.0
  elif name == 'all-reduce':
    moved = 2.0 * size
    if group and chip.torus_dimensions == 1:
      moved *= (group - 1) / group
  elif name in ('collective-permute', 'collective-broadcast') or not group:
    moved = float(size)
  else:
    moved = size * (group - 1) / group
  bandwidth = link_efficiency * chip.interconnect_bytes_per_second
  if any(_RING.search(i.attributes) for i in (instruction, collective)):
    bandwidth /= chip.torus_dimensions
  return Collective(
    name,
    instruction.name,
    collective.op_name or instruction.op_name,
    size,
    group,
    times,
    times * moved / bandwidth,
  )


def group_size(module: hlo.Module, collective: hlo.Instruction) -> int:
  """Counts the devices that take part in a collective together.

  HLO writes groups in one of three ways: as lists, {{0,1},{2,3}}, where {}
  means all devices; as the shape of a table of device numbers with one row per
  group, [2,4]<=[8]; or as axes of a mesh, mesh['a'=2,'b'=4] {'b'}, with an
  optional device order before the braces.

  Returns:
    The size of the largest group; for a permutation, the number of transfers;
    0 if it is not stated.
  """
  pairs = collective.attribute('source_target_pairs')
  if pairs is not None:
    return len(re.findall(r'\d+,\s*\d+', pairs))
  mesh = _MESH.search(collective.attributes)
  if mesh:
    sizes = dict(_MESH_SIZE.findall(mesh[1]))
    return math.prod(
      int(part or sizes[axis]) for axis, part in _MESH_AXIS.findall(mesh[2])
    )
  groups = collective.attribute('replica_groups')
  if groups is None:
    return 0
  if groups.startswith('['):
    return int(groups[1 : groups.index(']')].split(',')[-1])
  lists = re.findall(r'\{([\d,\s]+)\}', groups)
  if not lists:
    return module.num_devices
  return max(len(members.split(',')) for members in lists)
