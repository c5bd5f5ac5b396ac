"""The class and the time of one instruction of a compiled program.

The TPU compiler states the cycles of most instructions. For the others:

  random bits (`rng-bit-generator`): the time to write them to main memory.
  copies, pads and reshapes: the time to read and write main memory.

The GPU compiler states no cycles. There the time is a roofline: a kernel takes
at least the time to read its operands and write its results at the main
memory's bandwidth, and the time of its products at the peak rate. The larger of
both counts. Launches of kernels, elementwise operations and tiles that do not
divide the arrays count nothing. So the estimate is a lower bound, except that a
small array may still be in the cache.
"""

import math
import re

from vit_jax.plan.chips import Chip
from vit_jax.plan.hlo import Instruction

CLASSES = (
  *('matmul', 'attention', 'elementwise', 'copies', 'collectives', 'random'),
  'other',
)
# Opcodes that take no time, since they only name existing values.
FREE = {
  *('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast'),
  *('after-all', 'add-dependency', 'opt-barrier', 'partition-id'),
  'replica-id',
}
MOVES = {
  *('copy', 'transpose', 'reshape', 'bitcast-convert', 'pad', 'slice'),
  *('dynamic-slice', 'dynamic-update-slice', 'concatenate', 'reverse'),
  *('broadcast', 'iota'),
}
# Operations of an attention module, except its projections.
_ATTENTION = re.compile(
  r'MultiHeadDotProductAttention(_\d+)?/(?!(query|key|value|out)(/|$))'
)
_RANDOM = {'rng-bit-generator', 'rng', 'rng-get-and-update-state'}
# Names of JAX's random functions, elementwise work on the bits included.
_RANDOM_NAME = re.compile(
  r'threefry|random_bits|rng_bit_generator|_bernoulli|_uniform|_normal\b'
)
# The kernels of GPU libraries, by their targets.
_PRODUCT = '__cublas'
_CONVOLUTION = '__cudnn$conv'
_FUSED_ATTENTION = '__cudnn$fmha'
# The compiler's kernels that take no time: they allocate memory, or join arrays
# that are already contiguous.
_FREE_KERNELS = {'AllocateBuffer', 'ConcatBitcast'}
_OTHER = {'custom-call', 'sort', 'gather', 'scatter', 'async-start'}
_UNTIMED_MOVES = {'copy', 'pad', 'reshape', 'transpose'}

# Peak rate of a product, relative to that of bfloat16, by the operands' type.
# By XLA's default, GPUs multiply float32 in TF32.
_RATES = {'f32': 0.5, 's8': 2.0, 'u8': 2.0, 'f64': 1 / 16}
_SUMMED = re.compile(
  r'"?lhs_contracting_dim(?:ension)?s"?[=:]\s*[{\[]([^}\]]*)[}\]]'
)
_LABELS = re.compile(r'dim_labels=\w+_(\w+)->\w+')
_SLICES = {'slice', 'dynamic-slice', 'gather'}


def op_class(one: Instruction) -> str:
  """Returns the class of an instruction that is not a collective.

  A fusion with a matrix product counts as one, since the product takes most of
  its time.
  """
  if _FUSED_ATTENTION in one.kernel:
    return 'attention'
  products = [part for part in one.parts if _is_product(part)]
  if products:
    found = any(_ATTENTION.search(part.op_name) for part in products)
    return 'attention' if found else 'matmul'
  opcodes = {part.opcode for part in one.parts}
  if opcodes & _RANDOM or _RANDOM_NAME.search(one.op_name):
    return 'random'
  if opcodes <= MOVES | FREE:
    return 'copies'
  if _ATTENTION.search(one.op_name):
    return 'attention'
  return 'other' if one.opcode in _OTHER else 'elementwise'


def _is_product(part: Instruction) -> bool:
  return part.opcode in ('convolution', 'dot') or part.kernel.startswith(
    (_PRODUCT, _CONVOLUTION)
  )


def is_free(one: Instruction) -> bool:
  """Returns whether it only names values, or copies beside the computation."""
  name, _, last = one.opcode.rpartition('-')
  inside = {part.opcode for part in one.parts} if name == 'async' else {name}
  copies = last == 'start' and inside <= MOVES | FREE
  return copies or one.opcode in FREE or one.kernel in _FREE_KERNELS


def seconds(one: Instruction, chip: Chip) -> float | None:
  """Returns the seconds of one execution; None if they are unknown."""
  if chip.clock_mhz is None:
    return _roofline(one, chip)
  if one.estimated_cycles is not None:
    return one.estimated_cycles / (chip.clock_mhz * 1e6)
  if one.opcode in _RANDOM:
    return one.bytes / chip.hbm_bytes_per_second
  if one.opcode in _UNTIMED_MOVES and any(a.dims for a in one.arrays):
    size = sum(array.padded_bytes for array in one.arrays)
    return 2 * size / chip.hbm_bytes_per_second
  return None


def _roofline(one: Instruction, chip: Chip) -> float:
  moved = _read_bytes(one) + _written_bytes(one)
  computed = sum(
    _operations(part) / (_rate(part) * chip.peak_flops) for part in one.parts
  )
  return max(moved / chip.hbm_bytes_per_second, computed)


def _rate(part: Instruction) -> float:
  arrays = part.operands[0].arrays if part.operands else ()
  dtype = arrays[0].dtype if arrays else 'bf16'
  return 2.0 if dtype.startswith('f8') else _RATES.get(dtype, 1.0)


def _operations(part: Instruction) -> int:
  """Returns the operations of a product or of a library's kernel; else 0."""
  kernel = part.kernel
  if not _is_product(part) and _FUSED_ATTENTION not in kernel:
    return 0
  left, right = (operand.arrays[0].dims for operand in part.operands[:2])
  output = part.arrays[0].dims
  if _FUSED_ATTENTION in kernel:
    # Each product is of queries and keys, [B, L, H, K]: scores and values; in
    # the backward pass the scores again, and four gradients.
    products = 5 if kernel.endswith('Backward') else 2
    return products * 2 * math.prod(left) * right[1]
  if part.opcode == 'convolution' or kernel.startswith(_CONVOLUTION):
    # The kernels of gradients have the labels of the forward convolution.
    if kernel.endswith('BackwardFilter'):
      output, right = right, output
    elif kernel.endswith('BackwardInput'):
      output = left
    labels = _LABELS.search(part.attributes)
    features = right[labels[1].index('o')] if labels else 1
    # Two operations for each element of the output and of a filter.
    return 2 * math.prod(output) * math.prod(right) // features
  summed = _SUMMED.search(part.attributes)
  axes = re.findall(r'\d+', summed[1]) if summed else ()
  return 2 * math.prod(left[int(axis)] for axis in axes) * math.prod(output)


def _read_bytes(one: Instruction) -> int:
  """Returns the bytes that a kernel reads, of each operand once."""
  if one.opcode in _SLICES:
    return one.bytes
  if one.opcode == 'dynamic-update-slice':
    return one.operands[1].bytes
  needed = dict.fromkeys(one.operands, 0)
  if one.opcode != 'fusion':
    return sum(operand.bytes for operand in needed)
  for part in one.calls():
    if part.opcode == 'parameter':
      operand = one.operands[int(part.operand_text)]
      needed[operand] = min(operand.bytes, needed[operand] + _read(part))
  return sum(needed.values())


def _read(value: Instruction) -> int:
  """Returns how many bytes of a value its users within a fusion need."""
  total = 0
  for user in value.computation:
    if value not in user.operands:
      continue
    first = user.operands[0] is value
    if user.opcode == 'bitcast':
      total += _read(user)
    elif user.opcode in _SLICES and first:
      total += user.bytes
    elif user.opcode != 'dynamic-update-slice' or not first:
      return value.bytes
    # An update of a slice is in place.
  return min(total, value.bytes)


def _written_bytes(one: Instruction) -> int:
  """Returns the bytes that a kernel writes, without its working space."""
  if one.opcode == 'dynamic-update-slice':
    return one.operands[1].bytes
  if one.opcode == 'fusion':
    return _written(one.calls().root)
  arrays = one.arrays
  working = one.opcode == 'custom-call' and len(arrays) > 1
  if working and arrays[-1].dtype in ('s8', 'u8'):
    arrays = arrays[:-1]
  return sum(array.bytes for array in arrays)


def _written(value: Instruction) -> int:
  if value.opcode == 'tuple':
    return sum(_written(part) for part in value.operands)
  if value.opcode == 'bitcast':
    return _written(value.operands[0])
  if value.opcode == 'dynamic-update-slice':
    return value.operands[1].bytes
  return value.bytes
