"""Sorts the instructions of a compiled program into classes, for people."""

import re

from vit_jax.plan import hlo

CLASSES = (
  'matmul',
  'attention',
  'elementwise',
  'copies',
  'collectives',
  'random',
  'other',
)
# Inside a module of attention, but not one of its projections.
ATTENTION = (
  r'MultiHeadDotProductAttention(_\d+)?/(?!(query|key|value|out)(/|$))'
)
RANDOM_OPCODES = {'rng-bit-generator', 'rng', 'rng-get-and-update-state'}
# JAX's functions around random bits.
_RANDOM_NAME = re.compile(
  r'threefry|random_bits|rng_bit_generator|_bernoulli|_uniform|_normal\b'
)
_PRODUCTS = {'convolution', 'dot'}
# Opcodes that take no time: names for what is there already.
FREE = {
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'after-all',
  'add-dependency',
  'opt-barrier',
  'partition-id',
  'replica-id',
}
# Kernels of the compiler that take no time: memory to write to, and arrays
# that lie one behind the other already.
FREE_KERNELS = {'AllocateBuffer', 'ConcatBitcast'}
MOVES = {
  'copy',
  'transpose',
  'reshape',
  'bitcast-convert',
  'pad',
  'slice',
  'dynamic-slice',
  'dynamic-update-slice',
  'concatenate',
  'reverse',
  'broadcast',
  'iota',
}
_OTHER = {'custom-call', 'sort', 'gather', 'scatter', 'async-start'}


def op_class(
  instruction: hlo.Instruction,
  inside: list[hlo.Instruction],
  attention: re.Pattern,
) -> str:
  """Names the class of an instruction that is no collective.

  Args:
    instruction: what stands in the program.
    inside: it, or what a fusion is made of. A fusion with a matrix product is
      a matrix product, since the product is what it waits for.
    attention: pattern of the JAX operations of class 'attention'.
  """
  products = [part for part in inside if part.opcode in _PRODUCTS]
  if products:
    found = any(attention.search(part.op_name) for part in products)
    return 'attention' if found else 'matmul'
  opcodes = {part.opcode for part in inside}
  if opcodes & RANDOM_OPCODES or _RANDOM_NAME.search(instruction.op_name):
    return 'random'
  if opcodes <= MOVES | FREE:
    return 'copies'
  if attention.search(instruction.op_name):
    return 'attention'
  if instruction.opcode in _OTHER:
    return 'other'
  return 'elementwise'
