"""Parses the text of a compiled (optimised) HLO module.

`jax.jit(f).lower(...).compile().as_text()` returns such text. It consists of
computations, one of them the entry, with one instruction a line:

    %name = f32[8,128]{1,0:T(8,128)} opcode(%operand, ...), attribute=value, ...

The parser splits the lines once. It parses shapes and attributes on demand,
since most instructions are never looked at.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from vit_jax.plan import hlo_shapes

_COMPUTATION = re.compile(r'(ENTRY )?%?([^\s(]+) \(.*\{\s*$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?%(\S+) = ')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPCODE = re.compile(r'\s*([a-z][\w-]*)\(')
_BRACKETS = re.compile(r'[()]')
_NAME = re.compile(r'%([^\s,(){}]+)')
_CALLED = re.compile(
  r'\b(calls|body|condition|to_apply|true_computation|false_computation'
  r'|branch_computations|called_computations)=(\{[^}]*\}|%[^\s,]+)'
)
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_PARTITIONS = re.compile(r'\bnum_partitions=(\d+)')
_REPLICAS = re.compile(r'\breplica_count=(\d+)')


@dataclasses.dataclass
class Instruction:
  """An instruction.

  Attributes:
    name: the name without the '%'.
    opcode: the operation, such as 'fusion'.
    shape_text: shape of the result.
    operand_text: the text between the brackets; for a constant, its value.
    attributes: the rest of the line: metadata, backend_config, ...
    computation: name of the computation that contains the instruction.
    root: whether its result is the computation's result.
  """

  name: str
  opcode: str
  shape_text: str
  operand_text: str
  attributes: str
  computation: str
  root: bool

  @functools.cached_property
  def arrays(self) -> tuple[hlo_shapes.Array, ...]:
    """The arrays of the result, those of (nested) tuples in order."""
    return hlo_shapes.parse(self.shape_text)

  @property
  def bytes(self) -> int:
    """Bytes of the result, without padding."""
    return sum(array.bytes for array in self.arrays)

  @property
  def padded_bytes(self) -> int:
    """Bytes of the result, with the padding of its tiles."""
    return sum(array.padded_bytes for array in self.arrays)

  @functools.cached_property
  def operands(self) -> tuple[str, ...]:
    """Names of the operands."""
    if self.opcode in ('constant', 'parameter'):
      return ()
    return tuple(_NAME.findall(self.operand_text))

  @functools.cached_property
  def called(self) -> dict[str, tuple[str, ...]]:
    """Names of the computations it calls, by attribute ('calls', 'body')."""
    # The backend_config can be long and names no called computations.
    text = self.attributes.partition('backend_config=')[0]
    return {
      key: tuple(
        name.strip().lstrip('%') for name in value.strip('{}').split(',')
      )
      for key, value in _CALLED.findall(text)
    }

  @functools.cached_property
  def estimated_cycles(self) -> int | None:
    """The compiler's estimate for one execution; None if it states none."""
    found = _CYCLES.search(self.attributes)
    return int(found[1]) if found else None

  @functools.cached_property
  def op_name(self) -> str:
    """Path of the JAX operation it comes from; '' if the compiler added it."""
    found = _OP_NAME.search(self.attributes)
    return found[1] if found else ''

  def attribute(self, name: str) -> str | None:
    """Returns the text after `name=` up to a comma outside brackets, or None.

    Use this only for simple attributes ('index', 'direction',
    'replica_groups').
    """
    found = re.search(rf'(?:^|[ ,]){name}=', self.attributes)
    if not found:
      return None
    depth = 0
    for i in range(found.end(), len(self.attributes)):
      character = self.attributes[i]
      if character == ',' and not depth:
        return self.attributes[found.end() : i]
      depth += (character in '([{') - (character in ')]}')
    return self.attributes[found.end() :]


@dataclasses.dataclass
class Computation:
  """Instructions by name, in the order of the text."""

  name: str
  instructions: dict[str, Instruction]

  @functools.cached_property
  def root(self) -> Instruction:
    return next(i for i in self.instructions.values() if i.root)

  def __iter__(self):
    return iter(self.instructions.values())


@dataclasses.dataclass
class Module:
  """Computations by name.

  Attributes:
    computations: name -> computation.
    entry: the computation that a call of the program executes.
    header: the first line: name, aliasing, number of partitions.
  """

  computations: dict[str, Computation]
  entry: Computation
  header: str = ''

  @functools.cached_property
  def callers(self) -> dict[str, list[Instruction]]:
    """Name of a computation -> the instructions that call it."""
    found = {name: [] for name in self.computations}
    for computation in self.computations.values():
      for instruction in computation:
        for names in instruction.called.values():
          for name in names:
            found.setdefault(name, []).append(instruction)
    return found

  @property
  def num_devices(self) -> int:
    """Number of devices that run the program together."""
    stated = (_PARTITIONS.search(self.header), _REPLICAS.search(self.header))
    return math.prod(int(found[1]) for found in stated if found)

  def operands(self, instruction: Instruction) -> list[Instruction]:
    """Returns the instructions whose results an instruction uses."""
    siblings = self.computations[instruction.computation].instructions
    return [siblings[name] for name in instruction.operands]


def parse(text: str) -> Module:
  """Parses a module.

  Raises:
    ValueError: there is no entry computation, or a line is not an instruction.
  """
  lines = text.splitlines()
  computations, entry, current = {}, None, None
  for number, line in _whole(lines):
    if current is None:
      found = _COMPUTATION.match(line)
      if found:
        current = Computation(found[2], {})
        computations[current.name] = current
        entry = current if found[1] else entry
    elif line.startswith('}'):
      current = None
    elif line.strip():
      instruction = _parse_instruction(line, number, current.name)
      current.instructions[instruction.name] = instruction
  if entry is None:
    raise ValueError(
      'the text has no ENTRY computation: expected a whole HLO module, as'
      f' compiled.as_text() returns it; the text begins {text[:60]!r}.'
    )
  return Module(computations, entry, lines[0])


def _whole(lines: list[str]) -> Iterator[tuple[int, str]]:
  """Yields numbered lines; joins attributes that span several lines.

  Pallas kernels have such attributes: `frontend_attributes={kernel_metadata={`,
  then lines of JSON and the closing braces.
  """
  numbered = iter(enumerate(lines, start=1))
  for number, line in numbered:
    if line.endswith('={'):
      depth = _depth(line)
      while depth > 0:
        _, more = next(numbered, (0, None))
        if more is None:
          raise ValueError(f'line {number}: a brace is never closed.')
        line, depth = line + more, depth + _depth(more)
    yield number, line


def _depth(line: str) -> int:
  """Returns the opened minus the closed braces of a line, outside quotes."""
  bare = _QUOTED.sub('', line)
  return bare.count('{') - bare.count('}')


def _parse_instruction(line: str, number: int, computation: str) -> Instruction:
  head = _INSTRUCTION.match(line)
  if not head:
    raise ValueError(
      f'line {number} is not an HLO instruction: expected'
      f" '%name = shape opcode(operands)', not {line.strip()[:80]!r}."
    )
  start = head.end()
  if line[start] == '(':
    shape_end = _closing(line, start)
  else:
    shape_end = line.find(' ', start)
  opcode = _OPCODE.match(line, shape_end)
  if not opcode:
    raise ValueError(
      f'line {number}: expected an opcode and operands after the shape'
      f' {line[start:shape_end][:60]!r}, not {line[shape_end:][:60]!r}.'
    )
  operands_end = _closing(line, opcode.end() - 1)
  return Instruction(
    head[2],
    opcode[1],
    line[start:shape_end],
    line[opcode.end() : operands_end - 1],
    line[operands_end:].lstrip(', '),
    computation,
    bool(head[1]),
  )


def _closing(line: str, start: int) -> int:
  """Returns the index after the bracket that closes the one at `start`."""
  depth = 0
  for found in _BRACKETS.finditer(line, start):
    depth += 1 if found[0] == '(' else -1
    if not depth:
      return found.end()
  raise ValueError(f'a bracket is never closed in {line.strip()[:80]!r}.')
