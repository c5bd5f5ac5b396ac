"""Sorts the instructions of a compiled program into classes for the report."""

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
# Matches operations of an attention module, except its projections.
ATTENTION = (
  r'MultiHeadDotProductAttention(_\d+)?/(?!(query|key|value|out)(/|$))'
)
RANDOM_OPCODES = {'rng-bit-generator', 'rng', 'rng-get-and-update-state'}
# Names of JAX's random functions, elementwise work on the bits included.
_RANDOM_NAME = re.compile(
  r'threefry|random_bits|rng_bit_generator|_bernoulli|_uniform|_normal\b'
)
_PRODUCTS = {'convolution', 'dot'}
# The kernels of GPU libraries, by their targets.
PRODUCT = '__cublas'
CONVOLUTION = '__cudnn$conv'
FUSED_ATTENTION = '__cudnn$fmha'
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Opcodes that take no time, since they only name existing values.
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
# The compiler's kernels that take no time: they allocate memory, or join arrays
# that are already contiguous.
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
  """Returns the class of an instruction that is not a collective.

  Args:
    instruction: the instruction.
    inside: the parts of a fusion, or the instruction itself. A fusion with a
      matrix product counts as one, since the product takes most of its time.
    attention: pattern of the JAX operations of class 'attention'.
  """
  if FUSED_ATTENTION in kernel(instruction):
    return 'attention'
  products = [
    part
    for part in inside
    if part.opcode in _PRODUCTS
    or kernel(part).startswith((PRODUCT, CONVOLUTION))
  ]
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


def kernel(instruction: hlo.Instruction) -> str:
  """Returns the name of a library's kernel; '' for other instructions."""
  if instruction.opcode != 'custom-call':
    return ''
  found = _TARGET.search(instruction.attributes)
  return found[1] if found else ''
