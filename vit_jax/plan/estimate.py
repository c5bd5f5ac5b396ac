"""Estimates the seconds that one call of a compiled program takes.

The estimate adds up what `kernels` says of every instruction, multiplied by the
trip counts of the surrounding loops.

A collective takes its bytes over the share of the interconnect's bandwidth that
is reached; see `cost`. One that runs beside several fusions, all of which name
it, counts once. What the device computes between the start and the end of an
asynchronous one hides it; see `_Overlap`.

Asynchronous copies (`copy-start`, `slice-start`) take no time. The estimate
reports instructions of unknown time.
"""

import collections
import dataclasses
import math
import re

from vit_jax.plan import hlo, kernels
from vit_jax.plan.chips import Chip

KINDS = (
  *('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all'),
  *('ragged-all-to-all', 'collective-permute', 'collective-broadcast'),
)
_ENDS = ('-done', '-update', 'recv')
# The part of a collective that leaves a slice. A runtime on the host
# ("megascale") sends its data over the data center network.
BETWEEN_SLICES = 'between-slices'
_MEGASCALE = '_xla_megascale_transfer_type='
# The compiler's algorithms that send around one ring, and so use only the links
# of one dimension of the torus. They serve groups of less than all devices;
# 'StrategyND' sends along all dimensions at once.
_RING = re.compile(r'StrategyRing|"emitter":"1D')

_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(.*?\))? \{([^}]*)\}'
)
_MESH_SIZE = re.compile(r"'([^']+)'=(\d+)")
# A mesh axis, or a part of one: `:(size of the parts before it)size`.
_MESH_AXIS = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")


@dataclasses.dataclass(frozen=True)
class Row:
  """An instruction that takes time.

  Attributes:
    name: of the instruction.
    op_class: one of `kernels.CLASSES`.
    times: executions in one call, on average.
    seconds: time of all of them, less what is hidden of a collective.
  """

  name: str
  op_class: str
  times: float
  seconds: float


@dataclasses.dataclass
class Estimate:
  """The time that one call takes on one device.

  Attributes:
    rows: every instruction that takes time.
    uncovered: opcode -> bytes that instructions of unknown time write in one
      call; these instructions count as 0 seconds.
    hidden_seconds: seconds of collectives in one call that computation hides;
      not part of `rows`.
    assumptions: sentences for the reader.
  """

  rows: list[Row] = dataclasses.field(default_factory=list)
  uncovered: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  hidden_seconds: float = 0.0
  assumptions: list[str] = dataclasses.field(default_factory=list)

  @property
  def seconds(self) -> float:
    """Seconds of one call."""
    return sum(self.by_class.values())

  @property
  def by_class(self) -> dict[str, float]:
    """Seconds by class, in the order of `kernels.CLASSES`."""
    found = dict.fromkeys(kernels.CLASSES, 0.0)
    for row in self.rows:
      found[row.op_class] += row.seconds
    return found


def estimate(module: hlo.Module, chip: Chip) -> Estimate:
  """Estimates one call of a compiled module on a device.

  A loop whose trip count is unknown counts once, and `assumptions` says so. Of
  branches, the time is the mean.
  """
  found = Estimate()
  _Reader(found, chip, 1).read(module.entry)
  return found


class _Reader:
  """Reads a computation in its order, and adds what it executes.

  This is the order in which the device starts the instructions. An asynchronous
  collective starts at one of them and has to be complete at a later one.
  Meanwhile the device computes what stands in between. Collectives share the
  links, so a moment of computation hides only one.
  """

  def __init__(self, found: Estimate, chip: Chip, times: float):
    self._found = found
    self._chip = chip
    self._times = times  # Executions of the computation in one call.
    self._computed = 0.0  # Seconds of computation so far.
    self._covering = 0.0  # Computation up to here hides something already.
    # Key of a collective -> (its row, seconds computed when it started).
    self._started: dict[str, tuple[int, float]] = {}
    # Channels of collectives that were counted where a fusion starts them, and
    # that later fusions name again.
    self._counted: set[str] = set()

  def read(self, computation: hlo.Computation) -> None:
    for one in computation:
      row = len(self._found.rows)
      if one.opcode in ('while', 'call', 'conditional'):
        self._add_called(one)
      # What ends something was counted where it started, except for calls.
      elif not one.opcode.endswith(_ENDS) or one.opcode.startswith('call-'):
        self._add(one)
      self._hide(one, row)

  def _add_called(self, one: hlo.Instruction) -> None:
    times = self._times
    if one.opcode == 'while':
      count = hlo.trip_count(one)
      if count is None:
        count = 1
        self._found.assumptions.append(
          f'The trip count of the loop {one} is not known before it runs; the'
          ' loop is counted once.'
        )
      times *= count
    called = [name for names in one.called.values() for name in names]
    if one.opcode == 'conditional':  # FlexiViT draws one.
      times /= len(called)
    for name in called:
      computation = one.computation.module.computations[name]
      _Reader(self._found, self._chip, times).read(computation)

  def _add(self, one: hlo.Instruction) -> None:
    """Adds an instruction, which may be a fusion."""
    rows, times = self._found.rows, self._times
    collective = next(
      (p for p in one.parts if kind(p) and _channel(p) not in self._counted),
      None,
    )
    if collective:
      seconds = cost(one, collective, self._chip, times)
      rows.append(Row(one.name, 'collectives', times, seconds))
      if any(part.kernel == 'AsyncCollectiveStart' for part in one.parts):
        self._counted.add(_channel(collective))
      # A fusion also computes. A collective on its own is complete here.
      if one.opcode != 'fusion' or not one.estimated_cycles:
        return
    if kernels.is_free(one):
      return
    seconds = kernels.seconds(one, self._chip)
    if seconds is not None:
      op_class = kernels.op_class(one)
      rows.append(Row(one.name, op_class, times, times * seconds))
    elif not any(map(kind, one.parts)):
      self._found.uncovered[one.opcode] += times * one.bytes

  def _hide(self, one: hlo.Instruction, first: int) -> None:
    """Takes what computation hides out of the rows of collectives.

    Args:
      one: the instruction that was added.
      first: number of its first row.
    """
    rows, started = self._found.rows, None
    for place in range(first, len(rows)):
      if rows[place].op_class != 'collectives':
        self._computed += rows[place].seconds
      elif started is None:
        started = place
    for key in filter(None, _keys(one)):
      if started is not None:
        self._started[key] = started, self._computed
      elif key in self._started:
        place, since = self._started[key]
        begin = max(since, self._covering)
        hidden = max(0.0, min(rows[place].seconds, self._computed - begin))
        self._covering = max(self._covering, begin + hidden)
        left = rows[place].seconds - hidden
        rows[place] = dataclasses.replace(rows[place], seconds=left)
        self._found.hidden_seconds += hidden


def _keys(one: hlo.Instruction) -> list[str | None]:
  """Returns keys that are equal for all instructions of one collective."""
  if one.opcode.endswith('-start'):
    return [one.name]
  if one.opcode.endswith('-done'):
    return [one.operands[0].name]
  if one.opcode == 'fusion':
    return [_channel(part) for part in one.parts if kind(part)]
  return []


def kind(one: hlo.Instruction) -> str | None:
  """Returns the kind of a collective or its start; None for other opcodes."""
  if one.opcode == 'send' and _MEGASCALE in one.attributes:
    return BETWEEN_SLICES
  name = one.opcode.removesuffix('-start')
  return name if name in KINDS else None


def _channel(one: hlo.Instruction) -> str | None:
  return one.attribute('channel_id')


def cost(
  one: hlo.Instruction, collective: hlo.Instruction, chip: Chip, times: float
) -> float:
  """Returns the seconds of a collective, if nothing hides it.

  An all-reduce moves 2 x its bytes over the links of a torus, and (n-1)/n of
  that between n GPUs. An all-gather, a reduce-scatter and an all-to-all among n
  devices move (n-1)/n of the bytes of their larger side. A permutation and a
  broadcast move their bytes. If the compiler names a ring, only the links of
  one dimension of the torus carry the data. Transfers between slices move their
  bytes over the data center network, twice for an all-reduce. There is no
  latency.

  Args:
    one: the instruction in the program: the collective or its fusion.
    collective: the collective itself.
    chip: the device.
    times: executions in one call.
  """
  name = kind(collective)
  if name == BETWEEN_SLICES:
    size = collective.arrays[0].bytes
    reduced = f'{_MEGASCALE}"ALL_REDUCE"' in collective.attributes
    bandwidth = chip.link_efficiency * chip.network_bytes_per_second
    return times * size * (2 if reduced else 1) / bandwidth
  # The compiler writes a reduce-scatter as a fusion of an all-reduce and a
  # slice, with 'scatter' in its name.
  fused = one.called.get('calls', ())
  if name == 'all-reduce' and any('scatter' in part for part in fused):
    name = 'reduce-scatter'
  moved = float(sum(operand.bytes for operand in collective.operands))
  group = group_size(collective)
  if name == 'all-gather':
    moved *= max(group, 1)
  if name == 'all-reduce':
    moved *= 2
  on_torus = name == 'all-reduce' and chip.torus_dimensions > 1
  whole = on_torus or name in ('collective-permute', 'collective-broadcast')
  if group == 1:
    moved = 0.0
  elif group and not whole:
    moved = moved * (group - 1) / group
  bandwidth = chip.link_efficiency * chip.interconnect_bytes_per_second
  if any(_RING.search(i.attributes) for i in (one, collective)):
    bandwidth /= chip.torus_dimensions
  return times * moved / bandwidth


def group_size(collective: hlo.Instruction) -> int:
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
  if mesh := _MESH.search(collective.attributes):
    sizes = dict(_MESH_SIZE.findall(mesh[1]))
    return math.prod(
      int(part or sizes[axis]) for axis, part in _MESH_AXIS.findall(mesh[2])
    )
  groups = collective.attribute('replica_groups')
  if groups is None:
    return 0
  if groups.startswith('['):
    return int(groups.strip('[]').split(',')[-1])
  lists = re.findall(r'\{([\d,\s]+)\}', groups)
  if not lists:
    return collective.computation.module.num_devices
  return max(len(members.split(',')) for members in lists)
