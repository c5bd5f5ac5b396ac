"""Counts how often a loop of a compiled module runs.

TPU modules do not state trip counts. They follow from a few integers: a counter
that the body increments and a bound that the condition compares it with. This
module traces these integers through tuples, copies and fusions and executes
their arithmetic, so the bound, the first value and the step may be anywhere.
"""

import operator
from collections.abc import Callable
from typing import Any

from vit_jax.plan import hlo

# A longer loop counts as unknown; no training step comes near this.
LIMIT = 100_000

_SAME_VALUE = {
  'copy',
  'bitcast',
  'reshape',
  'broadcast',
  'convert',
  'copy-start',
  'copy-done',
  'opt-barrier',
  'transpose',
}
_ARITHMETIC = {
  'add': operator.add,
  'subtract': operator.sub,
  'multiply': operator.mul,
  'minimum': min,
  'maximum': max,
  'and': operator.and_,
  'or': operator.or_,
  'xor': operator.xor,
}
_DIRECTIONS = {
  'LT': operator.lt,
  'LE': operator.le,
  'GT': operator.gt,
  'GE': operator.ge,
  'EQ': operator.eq,
  'NE': operator.ne,
}
# Position in nested tuples; () for an array.
_Path = tuple[int, ...]
# (number of a parameter, position in it) -> value.
_Environment = Callable[[int, _Path], Any]


class _UnknownError(Exception):
  """The value is unknown before the program runs."""


class _Parameter(tuple):
  """Stands for the value at a position of a computation's first parameter."""


def trip_count(module: hlo.Module, loop: hlo.Instruction) -> int | None:
  """Counts how often a `while` instruction's body runs in one execution.

  Args:
    module: the whole program, since bounds may come from outside the loop.
    loop: a `while` instruction of the program.

  Returns:
    The count; None if it depends on data or exceeds LIMIT.
  """
  stated = loop.attributes.partition('known_trip_count')[2]
  if stated:
    digits = ''.join(c for c in stated[:24].split('}')[0] if c.isdigit())
    if digits:
      return int(digits)
  try:
    return _run(module, loop)
  except (_UnknownError, RecursionError):
    return None


def _run(module: hlo.Module, loop: hlo.Instruction) -> int | None:
  """Executes a loop's counter; returns the trip count, None above LIMIT."""
  condition = module.computations[loop.called['condition'][0]].root
  body = module.computations[loop.called['body'][0]].root
  (initial,) = module.operands(loop)
  outside = _surroundings(module, loop.computation)
  state = {}

  def at_first(_: int, path: _Path) -> Any:
    if path not in state:
      state[path] = _value(module, initial, path, outside)
    return state[path]

  def now(_: int, path: _Path) -> Any:
    return state[path]

  # Find all positions of the state that the condition depends on: those that it
  # reads, those from which the body computes these, and so on.
  running = _value(module, condition, (), at_first)
  known = 0
  while known != len(state):
    known = len(state)
    for path in list(state):
      _value(module, body, path, at_first)
  count = 0
  while running and count <= LIMIT:
    count += 1
    following = {path: _value(module, body, path, now) for path in state}
    state.update(following)
    running = _value(module, condition, (), now)
  return count if count <= LIMIT else None


def _surroundings(module: hlo.Module, computation: str) -> _Environment:
  """Returns the known parameter values of the computation around a loop."""

  def parameter(number: int, path: _Path) -> Any:
    callers = module.callers[computation]
    if len(callers) != 1:
      raise _UnknownError
    (caller,) = callers
    outside = _surroundings(module, caller.computation)
    if caller.opcode == 'while':
      if not _unchanged(module, caller, path):
        raise _UnknownError
    elif caller.opcode != 'call':
      raise _UnknownError
    operand = module.operands(caller)[number]
    return _value(module, operand, path, outside)

  return parameter


def _unchanged(module: hlo.Module, loop: hlo.Instruction, path: _Path) -> bool:
  """Returns whether a loop leaves a position of its state unchanged."""
  body = module.computations[loop.called['body'][0]].root
  try:
    value = _value(module, body, path, lambda _, at: _Parameter(at))
  except _UnknownError:
    return False
  return isinstance(value, _Parameter) and value == path


def _value(
  module: hlo.Module,
  instruction: hlo.Instruction,
  path: _Path,
  environment: _Environment,
) -> Any:
  """Computes the number at a position of an instruction's result.

  Raises:
    _UnknownError: it depends on data or on an unsupported operation.
  """
  opcode = instruction.opcode
  if opcode == 'parameter':
    return environment(int(instruction.operand_text), path)
  if opcode == 'constant':
    return _literal(instruction.operand_text)
  operands = module.operands(instruction)
  if opcode == 'tuple':
    if not path:
      raise _UnknownError  # An operation uses the whole tuple.
    return _value(module, operands[path[0]], path[1:], environment)
  if opcode == 'get-tuple-element':
    index = int(instruction.attribute('index'))
    return _value(module, operands[0], (index, *path), environment)
  if opcode in _SAME_VALUE:
    return _value(module, operands[0], path, environment)
  if opcode in ('fusion', 'call'):
    key = 'calls' if opcode == 'fusion' else 'to_apply'
    root = module.computations[instruction.called[key][0]].root
    return _value(
      module,
      root,
      path,
      lambda number, at: _value(module, operands[number], at, environment),
    )
  if opcode == 'while':
    if not _unchanged(module, instruction, path):
      raise _UnknownError
    return _value(module, operands[0], path, environment)
  return _computed(
    instruction, [_value(module, o, (), environment) for o in operands]
  )


def _computed(instruction: hlo.Instruction, values: list) -> Any:
  """Applies an arithmetic operation."""
  if any(isinstance(value, _Parameter) for value in values):
    raise _UnknownError
  opcode = instruction.opcode
  if opcode in _ARITHMETIC:
    return _ARITHMETIC[opcode](*values)
  if opcode == 'compare':
    return _DIRECTIONS[instruction.attribute('direction')](*values)
  if opcode == 'select':
    return values[1] if values[0] else values[2]
  if opcode == 'not' and isinstance(values[0], bool):
    return not values[0]
  if opcode == 'negate':
    return -values[0]
  raise _UnknownError


def _literal(text: str) -> int | bool:
  """Parses the value of a constant: `7`, `true`, or one element `{7}`."""
  text = text.strip('{} ')
  if text in ('true', 'false'):
    return text == 'true'
  try:
    return int(text)
  except ValueError:
    raise _UnknownError from None
