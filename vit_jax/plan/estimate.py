"""Estimates the seconds that one call of a compiled program takes.

The TPU compiler states the expected cycles of most instructions. The estimate
multiplies them by the trip counts of the surrounding loops, adds them up and
divides the sum by the clock. The compiler leaves out some instructions, for
which the estimate has rules:

  collectives: bytes over LINK_EFFICIENCY of the interconnect's bandwidth; see
    `collectives.cost`. A collective that runs beside several fusions, all of
    which name it, counts once. What the device computes between the start and
    the end of an asynchronous one hides it; see `overlap`.
  random bits (`rng-bit-generator`): the time to write them to main memory.
  copies, pads and reshapes without cycles: the time to read and write main
    memory.
  kernels (Pallas): the larger of operations over the peak and bytes over the
    memory's bandwidth, as the kernel states them. That is a lower bound. A
    kernel that states nothing counts the bytes of its operands and result.

Asynchronous copies (`copy-start`, `slice-start`) take no time; the estimate
reports their bytes. It also reports instructions with neither cycles nor a
rule. The GPU compiler states no cycles; `roofline` has the rule for its
instructions.
"""

import collections as containers
import dataclasses
import re
from collections.abc import Callable, Sequence

from vit_jax.plan import collectives, hlo, op_classes, trip_counts
from vit_jax.plan.chips import Chip
from vit_jax.plan.collectives import Collective
from vit_jax.plan.overlap import Overlap

# These end something that an earlier instruction started, and take no time.
_ENDS = re.compile(r'(copy|slice|async|send|recv)-(done|update)$')
_ASYNC_COPIES = {
  'copy-start',
  'slice-start',
  'dynamic-slice-start',
  'dynamic-update-slice-start',
}
_UNTIMED_MOVES = {'copy', 'pad', 'reshape', 'transpose'}
_KERNEL_COST = re.compile(r'"(flops|bytes_accessed)":\s*"?(\d+)')
_PALLAS = 'tpu_custom_call'

# Estimates the seconds of an instruction from itself and its parts (those of a
# fusion, or the instruction alone).
Rule = Callable[[hlo.Instruction, Sequence[hlo.Instruction]], float]


@dataclasses.dataclass(frozen=True)
class Row:
  """An instruction; `seconds` covers all its `times` executions in a call."""

  name: str
  op_name: str
  op_class: str
  times: int
  seconds: float


@dataclasses.dataclass
class Estimate:
  """The time that one call takes on one device.

  Attributes:
    rows: every instruction that takes time.
    collectives: the collectives among `rows`, in detail.
    uncovered: opcode -> bytes that instructions with neither cycles nor a rule
      write in one call; these instructions count as 0 seconds.
    overlapped_bytes: bytes that asynchronous copies move in one call.
    hidden_seconds: seconds of collectives in one call that computation hides;
      not part of `rows`.
    assumptions: sentences for the reader.
  """

  rows: list[Row] = dataclasses.field(default_factory=list)
  collectives: list[Collective] = dataclasses.field(default_factory=list)
  uncovered: containers.Counter = dataclasses.field(
    default_factory=containers.Counter
  )
  overlapped_bytes: int = 0
  hidden_seconds: float = 0.0
  assumptions: list[str] = dataclasses.field(default_factory=list)

  @property
  def seconds(self) -> float:
    """Seconds of one call."""
    return sum(self.by_class.values())

  @property
  def by_class(self) -> dict[str, float]:
    """Seconds by class, in the order of `op_classes.CLASSES`."""
    found = dict.fromkeys(op_classes.CLASSES, 0.0)
    for row in self.rows:
      found[row.op_class] += row.seconds
    return found

  def assume(self, sentence: str) -> None:
    if sentence not in self.assumptions:
      self.assumptions.append(sentence)

  def add(self, other: 'Estimate') -> None:
    """Adds the estimate of a part of the program."""
    self.rows += other.rows
    self.collectives += other.collectives
    self.uncovered.update(other.uncovered)
    self.overlapped_bytes += other.overlapped_bytes
    self.hidden_seconds += other.hidden_seconds
    for sentence in other.assumptions:
      self.assume(sentence)


def estimate(
  module: hlo.Module,
  chip: Chip,
  *,
  strict: bool = False,
  link_efficiency: float = collectives.LINK_EFFICIENCY,
  attention: str = op_classes.ATTENTION,
  seconds: Rule | None = None,
) -> Estimate:
  """Estimates one call; the module's docstring gives the rules.

  Args:
    module: a compiled module.
    chip: the device.
    strict: whether a loop with an unknown trip count is an error; otherwise the
      loop counts once, and `assumptions` says so.
    link_efficiency: share of the interconnect's bandwidth that is reached.
    attention: pattern of the JAX operations of class 'attention'.
    seconds: estimates an instruction; None follows the rules for TPUs.

  Raises:
    ValueError: `strict` is set and a loop's trip count is unknown.
  """
  walk = _Walk(
    module, chip, strict, link_efficiency, re.compile(attention), seconds
  )
  return walk.estimate(module.entry, 1)


@dataclasses.dataclass(frozen=True)
class _Walk:
  """Adds up what a program executes; the fields are `estimate`'s arguments."""

  module: hlo.Module
  chip: Chip
  strict: bool
  link_efficiency: float
  attention: re.Pattern
  seconds: Rule | None

  def estimate(self, computation: hlo.Computation, times: int) -> Estimate:
    """Estimates a computation that a call executes `times` times."""
    total = Estimate()
    beside: set[str] = set()
    overlap = Overlap(total.rows)
    for instruction in computation:
      opcode = instruction.opcode
      if (
        opcode in op_classes.FREE
        or _ENDS.search(opcode)
        or collectives.ends(instruction)
      ):
        pass  # It takes no time.
      elif opcode == 'while':
        self._add_loop(total, instruction, times)
      elif opcode == 'call':
        total.add(self.estimate(self._called(instruction, 'to_apply'), times))
      elif opcode == 'conditional':
        self._add_branches(total, instruction, times)
      else:
        self._add_instruction(total, instruction, times, beside)
      overlap.follow(instruction, self._inside(instruction))
    total.hidden_seconds += overlap.hidden
    return total

  def _called(self, instruction: hlo.Instruction, key: str):
    return self.module.computations[instruction.called[key][0]]

  def _add_loop(
    self, total: Estimate, loop: hlo.Instruction, times: int
  ) -> None:
    count = trip_counts.trip_count(self.module, loop)
    if count is None:
      problem = (
        f'the trip count of the loop {_described(loop)} is not known before it'
        ' runs'
      )
      if self.strict:
        raise ValueError(
          f'{problem}, so its time is unknown: give the loop a bound that is a'
          ' Python number, or use strict=False, which counts the loop once.'
        )
      total.assume(f'{problem}; the loop is counted once')
      count = 1
    for key in ('condition', 'body'):
      total.add(self.estimate(self._called(loop, key), times * count))

  def _add_branches(
    self, total: Estimate, conditional: hlo.Instruction, times: int
  ) -> None:
    branches = [
      self.estimate(self.module.computations[name], times)
      for names in conditional.called.values()
      for name in names
    ]
    total.add(max(branches, key=lambda branch: branch.seconds))
    total.assume(
      f'of the branches of {_described(conditional)} only the longest counts'
    )

  def _add_instruction(
    self,
    total: Estimate,
    instruction: hlo.Instruction,
    times: int,
    beside: set[str],
  ) -> None:
    """Adds an instruction other than a loop, a call or a conditional.

    Args:
      total: the estimate to add to.
      instruction: the instruction; it may be a fusion.
      times: executions in one call.
      beside: channels of collectives whose start was counted already. If this
        instruction starts a collective, its channel is added.
    """
    inside = self._inside(instruction)
    collective = next(
      (
        part
        for part in inside
        if collectives.kind(part) and part.attribute('channel_id') not in beside
      ),
      None,
    )
    if collective:
      found = collectives.cost(
        self.module,
        instruction,
        collective,
        self.chip,
        times,
        self.link_efficiency,
      )
      total.collectives.append(found)
      if found.kind == collectives.BETWEEN_SLICES:
        total.assume(
          'transfers between slices have'
          f' {self.chip.network_bytes_per_second / 1e9:g} GB/s a device'
        )
      total.rows.append(
        Row(found.name, found.op_name, 'collectives', times, found.seconds)
      )
      started = collectives.channel_beside(inside)
      if started:
        beside.add(started)
      # A fusion also computes. A collective on its own is complete here.
      if instruction.opcode != 'fusion' or not instruction.estimated_cycles:
        return
    if instruction.opcode in _ASYNC_COPIES or (
      instruction.opcode == 'async-start'
      and {part.opcode for part in inside} <= op_classes.MOVES | op_classes.FREE
    ):
      # (source, destination, state)
      total.overlapped_bytes += times * instruction.arrays[-2].bytes
      return
    if self.seconds:
      seconds = self.seconds(instruction, inside)
    else:
      seconds = self._seconds(total, instruction)
    if seconds is None and any(map(collectives.kind, inside)):
      return  # Ends a collective that was counted where it started.
    if seconds is None:
      total.uncovered[instruction.opcode] += times * instruction.bytes
      return
    total.rows.append(
      Row(
        instruction.name,
        instruction.op_name,
        op_classes.op_class(instruction, inside, self.attention),
        times,
        times * seconds,
      )
    )

  def _inside(self, instruction: hlo.Instruction) -> list[hlo.Instruction]:
    """Returns the instruction, or all parts of a fusion or async start."""
    if 'calls' not in instruction.called:
      return [instruction]
    return [
      part
      for inner in self._called(instruction, 'calls')
      for part in self._inside(inner)
    ]

  def _seconds(
    self, total: Estimate, instruction: hlo.Instruction
  ) -> float | None:
    """Estimates the seconds of one execution; None if unknown."""
    if instruction.estimated_cycles is not None:
      return instruction.estimated_cycles / (self.chip.clock_mhz * 1e6)
    opcode = instruction.opcode
    bandwidth = self.chip.hbm_bytes_per_second
    if opcode in op_classes.RANDOM_OPCODES:
      total.assume('random bits take the time to write them to the main memory')
      return instruction.bytes / bandwidth
    if opcode in _UNTIMED_MOVES and any(a.dims for a in instruction.arrays):
      total.assume(
        'copies, pads and reshapes for which the compiler states no cycles take'
        ' the time to read and write them in the main memory'
      )
      return 2 * instruction.padded_bytes / bandwidth
    if opcode == 'custom-call':
      return self._kernel_seconds(total, instruction)
    return None

  def _kernel_seconds(
    self, total: Estimate, kernel: hlo.Instruction
  ) -> float | None:
    target = op_classes.kernel(kernel)
    if target in op_classes.FREE_KERNELS:
      return 0.0
    stated = {
      key: int(value) for key, value in _KERNEL_COST.findall(kernel.attributes)
    }
    if stated:
      total.assume(
        'kernels (custom calls) take the time of the operations and bytes that'
        " they state, at the chip's peak; this is a lower bound"
      )
    elif target == _PALLAS:
      total.assume(
        f'the kernel {_described(kernel)} states no cost: only the time to read'
        ' its operands and write its result is counted; it may take much longer'
      )
      operands = sum(o.bytes for o in self.module.operands(kernel))
      stated = {'bytes_accessed': operands + kernel.bytes}
    else:
      return None
    return max(
      stated.get('flops', 0) / self.chip.peak_flops,
      stated.get('bytes_accessed', 0) / self.chip.hbm_bytes_per_second,
    )


def _described(instruction: hlo.Instruction) -> str:
  origin = instruction.op_name or "the compiler's own"
  return f'{instruction.name} ({origin})'
