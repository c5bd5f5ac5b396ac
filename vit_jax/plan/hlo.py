"""Parses the text of a compiled (optimised) HLO module.

`jax.jit(f).lower(...).compile().as_text()` returns such text. It consists of
computations, one of them the entry, with one instruction a line:

    %name = bf16[8,128]{1,0:T(8,128)(2,1)} opcode(%operand), attribute=value

The braces of an array hold its dimensions, fastest varying first, and its
tiles. Shapes and attributes are parsed on demand, since most instructions are
never looked at.
"""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

# A longer loop counts as unknown; no training step comes near this.
LIMIT = 100_000

_COMPUTATION = re.compile(r'(ENTRY )?%?([^\s(]+) \(.*\{\s*$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?%(\S+) = (.+?) ([a-z][\w-]*)\(')
_BRACKETS = re.compile(r'[()]')
_NAME = re.compile(r'%([^\s,(){}]+)')
_CALLED = re.compile(
  r'\b(calls|body|condition|to_apply|true_computation|false_computation'
  r'|branch_computations|called_computations)=(\{[^}]*\}|%[^\s,]+)'
)
_VALUE = r'(\{(?:\{[^{}]*\}|[^{}])*\}|\[[^\]]*\]|[^,\s]+)'
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_KERNEL = re.compile(r'custom_call_target="([^"]*)"')
_DEVICES = re.compile(r'\b(?:num_partitions|replica_count)=(\d+)')
_TRIPS = re.compile(r'known_trip_count\D*(\d+)')
_ARRAY = re.compile(r'([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?')
_TILE = re.compile(r'T\(([\d,*]+)\)')
_BITS = re.compile(r'[a-z]+(\d+)')
_NAMED_BITS = {'pred': 8, 'token': 0, 'opaque': 0}


@dataclasses.dataclass(frozen=True)
class Array:
  """An array in a result, with its layout.

  Attributes:
    dtype: HLO's name, such as 'bf16' or 'pred'.
    dims: sizes.
    minor_to_major: dimensions, fastest varying first; empty if not given.
    tile: sizes of the outermost tile, such as (8, 128); empty if untiled.
  """

  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...] = ()
  tile: tuple[int, ...] = ()

  @property
  def bytes(self) -> int:
    """Bytes without padding; elements of less than a byte are packed."""
    return self._bytes_of(self.dims)

  @property
  def padded_bytes(self) -> int:
    """Bytes with the minor dimensions rounded up to whole tiles."""
    order = self.minor_to_major or range(len(self.dims))[::-1]
    sizes = [self.dims[i] for i in order] + [1] * len(self.tile)
    for i, size in enumerate(reversed(self.tile)):
      sizes[i] = -(-sizes[i] // size) * size
    return self._bytes_of(sizes)

  def _bytes_of(self, sizes) -> int:
    bits = _NAMED_BITS.get(self.dtype)
    if bits is None:
      bits = int(_BITS.match(self.dtype)[1])
    return -(-math.prod(sizes) * bits // 8)


@functools.cache
def arrays(shape: str) -> tuple[Array, ...]:
  """Parses an array or the arrays of a (nested) tuple, in order."""

  def numbers(text: str) -> tuple[int, ...]:
    # `<=8` is a size that is known only at run time; 8 is allocated. `*` joins
    # a dimension to the next one, so it has no separate padding.
    words = (word.strip('<=').replace('*', '1') for word in text.split(','))
    return tuple(int(word) for word in words if word)

  found = []
  for dtype, dims, layout in _ARRAY.findall(shape):
    order, _, tiling = layout.partition(':')
    tile = _TILE.search(tiling)
    found.append(
      Array(
        dtype, numbers(dims), numbers(order), numbers(tile[1] if tile else '')
      )
    )
  return tuple(found)


@dataclasses.dataclass(eq=False)
class Instruction:
  """An instruction.

  Attributes:
    name: the name without the '%'.
    opcode: the operation, such as 'fusion'.
    shape: the text of the result's shape.
    operand_text: the text between the brackets; for a constant, its value.
    attributes: the rest of the line: metadata, backend_config, ...
    computation: the computation that contains the instruction.
    root: whether its result is the computation's result.
  """

  name: str
  opcode: str
  shape: str
  operand_text: str
  attributes: str
  computation: 'Computation'
  root: bool

  def __str__(self) -> str:
    """Returns the name and where it comes from, for messages."""
    origin = self.op_name or "the compiler's own"
    return f'{self.name} ({origin})'

  @property
  def arrays(self) -> tuple[Array, ...]:
    """The arrays of the result, those of (nested) tuples in order."""
    return arrays(self.shape)

  @property
  def bytes(self) -> int:
    """Bytes of the result, without padding."""
    return sum(array.bytes for array in self.arrays)

  @functools.cached_property
  def operands(self) -> list['Instruction']:
    """The instructions whose results it uses."""
    if self.opcode in ('constant', 'parameter'):
      return []
    siblings = self.computation.instructions
    return [siblings[name] for name in _NAME.findall(self.operand_text)]

  @functools.cached_property
  def called(self) -> dict[str, list[str]]:
    """Names of the computations it calls, by attribute ('calls', 'body')."""
    # The backend_config can be long and names no called computations.
    text = self.attributes.partition('backend_config=')[0]
    return {
      key: [name.strip().lstrip('%') for name in value.strip('{}').split(',')]
      for key, value in _CALLED.findall(text)
    }

  def calls(self, key: str = 'calls') -> 'Computation':
    """Returns the computation that an attribute names."""
    return self.computation.module.computations[self.called[key][0]]

  @functools.cached_property
  def parts(self) -> list['Instruction']:
    """All parts of a fusion or an asynchronous start; else itself alone."""
    if 'calls' not in self.called:
      return [self]
    return [part for inner in self.calls() for part in inner.parts]

  @property
  def estimated_cycles(self) -> int | None:
    """The compiler's estimate for one execution; None if it states none."""
    found = _CYCLES.search(self.attributes)
    return int(found[1]) if found else None

  @functools.cached_property
  def op_name(self) -> str:
    """Path of the JAX operation it comes from; '' if the compiler added it."""
    found = _OP_NAME.search(self.attributes)
    return found[1] if found else ''

  @functools.cached_property
  def kernel(self) -> str:
    """The name of a library's kernel; '' for other instructions."""
    found = _KERNEL.search(self.attributes)
    return found[1] if found and self.opcode == 'custom-call' else ''

  def attribute(self, name: str) -> str | None:
    """Returns the value of a simple attribute or of (nested) lists, or None."""
    found = re.search(rf'(?:^|[ ,]){name}={_VALUE}', self.attributes)
    return found[1] if found else None


@dataclasses.dataclass(eq=False)
class Computation:
  """Instructions by name, in the order of the text."""

  name: str
  module: 'Module'
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def root(self) -> Instruction:
    return next(one for one in self if one.root)

  def __iter__(self) -> Iterator[Instruction]:
    return iter(self.instructions.values())


@dataclasses.dataclass(eq=False)
class Module:
  """A program.

  Attributes:
    num_devices: number of devices that run the program together.
    computations: name -> computation.
    entry: the computation that a call of the program executes.
  """

  num_devices: int
  computations: dict[str, Computation] = dataclasses.field(default_factory=dict)
  entry: Computation | None = None


def parse(text: str) -> Module:
  """Parses a module.

  Raises:
    ValueError: a line is not an instruction.
  """
  lines = text.splitlines()
  module = Module(math.prod(map(int, _DEVICES.findall(lines[0]))))
  current = None
  for line in lines:
    if current is None:
      if found := _COMPUTATION.match(line):
        current = Computation(found[2], module)
        module.computations[current.name] = current
        module.entry = current if found[1] else module.entry
    elif line.startswith('}'):
      current = None
    elif line.strip():
      head = _INSTRUCTION.match(line)
      end = _closing(line, head.end() - 1) if head else 0
      if not end:
        raise ValueError(
          'Not an HLO instruction: expected'
          f" '%name = shape opcode(operands)', not {line.strip()[:80]!r}."
        )
      current.instructions[head[2]] = Instruction(
        head[2],
        head[4],
        head[3],
        line[head.end() : end - 1],
        line[end:].lstrip(', '),
        current,
        bool(head[1]),
      )
  return module


def _closing(line: str, start: int) -> int:
  """Returns the index after the bracket that closes that at `start`, or 0."""
  depth = 0
  for found in _BRACKETS.finditer(line, start):
    depth += 1 if found[0] == '(' else -1
    if not depth:
      return found.end()
  return 0


_SAME_VALUE = {
  *('copy', 'bitcast', 'reshape', 'broadcast', 'convert', 'transpose'),
  *('copy-start', 'copy-done', 'opt-barrier'),
}
_OPERATIONS = {
  'add': operator.add,
  'subtract': operator.sub,
  'multiply': operator.mul,
  'negate': operator.neg,
  'minimum': min,
  'maximum': max,
  'and': operator.and_,
  'or': operator.or_,
  'xor': operator.xor,
  'select': lambda chosen, first, second: first if chosen else second,
}
# Position in nested tuples; () for an array.
_Path = tuple[int, ...]
# (number of a parameter, position in it) -> value.
_Environment = Callable[[int, _Path], Any]


class _UnknownError(Exception):
  """The value is unknown before the program runs."""


def trip_count(loop: Instruction) -> int | None:
  """Counts how often a `while` instruction's body runs in one execution.

  TPU modules do not state it. It follows from a few integers: a counter that
  the body increments and a bound that the condition compares it with. This
  function traces them through tuples, copies and fusions and executes their
  arithmetic, so the bound, the first value and the step may be anywhere in the
  loop and in the computation around it.

  Returns:
    The count; None if it depends on data or exceeds LIMIT.
  """
  if stated := _TRIPS.search(loop.attributes):
    return int(stated[1])
  condition, body = (loop.calls(key).root for key in ('condition', 'body'))

  @functools.cache
  def state(path: _Path, trips: int) -> Any:
    if not trips:
      return _value(loop.operands[0], path, _unknown)
    return _value(body, path, lambda _, at: state(at, trips - 1))

  def runs(trips: int) -> bool:
    return _value(condition, (), lambda _, at: state(at, trips))

  try:
    return next((n for n in range(LIMIT + 1) if not runs(n)), None)
  except (_UnknownError, RecursionError):
    return None


def _unknown(number: int, path: _Path) -> Any:
  raise _UnknownError


def _value(one: Instruction, path: _Path, environment: _Environment) -> Any:
  """Computes the number at a position of an instruction's result.

  Raises:
    _UnknownError: it depends on data or on an unsupported operation.
  """
  opcode, operands = one.opcode, one.operands
  if opcode == 'parameter':
    return environment(int(one.operand_text), path)
  if opcode == 'tuple' and path:
    return _value(operands[path[0]], path[1:], environment)
  if opcode == 'get-tuple-element':
    index = int(one.attribute('index'))
    return _value(operands[0], (index, *path), environment)
  if opcode in _SAME_VALUE:
    return _value(operands[0], path, environment)
  if opcode in ('fusion', 'call'):
    root = one.calls('calls' if opcode == 'fusion' else 'to_apply').root
    return _value(
      root, path, lambda number, at: _value(operands[number], at, environment)
    )
  if opcode == 'constant':
    return _literal(one.operand_text)
  operation = _OPERATIONS.get(opcode)
  if opcode == 'compare':
    operation = getattr(operator, one.attribute('direction').lower())
  if operation is None:
    raise _UnknownError
  return operation(*(_value(operand, (), environment) for operand in operands))


def _literal(text: str) -> int | bool:
  """Parses the value of a constant: `7`, `true`, or one element `{7}`."""
  text = text.strip('{} ')
  try:
    return text == 'true' if text in ('true', 'false') else int(text)
  except ValueError:
    raise _UnknownError from None
