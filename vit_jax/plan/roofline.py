"""Estimates a compiled GPU program's time by the roofline; nothing is measured.

A kernel takes at least the time to read its operands and write its results at
the main memory's bandwidth, and the time of its products at the peak rate. The
larger of both counts. Collectives take the bytes that each GPU sends, at the
full bandwidth of its links, minus what the program computes meanwhile. Launches
of kernels, elementwise operations and tiles that do not divide the arrays count
nothing. So the estimate is a lower bound, except that a small array may still
be in the cache.
"""

import math
import re

from vit_jax.plan import chips, hlo, op_classes
from vit_jax.plan import estimate as estimate_lib

METHOD = 'roofline, not measured'
# One run each, LOG.md. The prototype was not this program.
MEASURED = (
  'On an H100, the steps of ViT-B/16 and L/16 with `plain` attention took 1.45'
  " and 1.41 times as long; a prototype of cuDNN's took 1.6 times as long."
)
# Peak rate of a product, relative to that of bfloat16, by the operands' type.
# By XLA's default, GPUs multiply float32 in TF32.
_RATES = {'f32': 0.5, 's8': 2.0, 'u8': 2.0, 'f64': 1 / 16}
_NARROW = re.compile(r'f8')
_SUMMED = re.compile(
  r'"?lhs_contracting_dim(?:ension)?s"?[=:]\s*[{\[]([^}\]]*)[}\]]'
)
_LABELS = re.compile(r'dim_labels=\w+_(\w+)->\w+')
# Products in a fused attention, each of queries and keys: scores and values;
# in its backward pass the scores again, and four gradients.
_ATTENTION_PRODUCTS, _ATTENTION_PRODUCTS_BACKWARD = 2, 5
_SLICES = {'slice', 'dynamic-slice', 'gather'}


def estimate(module: hlo.Module, chip: chips.Chip) -> estimate_lib.Estimate:
  """Estimates one call of a program; the module's docstring gives the rules.

  Args:
    module: a module that was compiled for a GPU.
    chip: the GPU.
  """

  def seconds(instruction, inside) -> float:
    moved = read_bytes(module, instruction) + written_bytes(module, instruction)
    computed = sum(
      flops(module, part) / (_rate(module, part) * chip.peak_flops)
      for part in inside
    )
    return max(moved / chip.hbm_bytes_per_second, computed)

  return estimate_lib.estimate(
    module, chip, link_efficiency=1.0, seconds=seconds
  )


def flops(module: hlo.Module, part: hlo.Instruction) -> int:
  """Returns the operations of a product or of a library's kernel; else 0."""
  target = op_classes.kernel(part)
  if op_classes.FUSED_ATTENTION in target:
    query, key = (
      operand.arrays[0].dims for operand in module.operands(part)[:2]
    )
    products = (
      _ATTENTION_PRODUCTS_BACKWARD
      if target.endswith('Backward')
      else _ATTENTION_PRODUCTS
    )
    return products * 2 * math.prod(query) * key[1]  # [B, L, H, K] each.
  if part.opcode == 'convolution' or op_classes.CONVOLUTION in target:
    return _convolution(module, part, target)
  if part.opcode != 'dot' and not target.startswith(op_classes.PRODUCT):
    return 0
  left = module.operands(part)[0].arrays[0].dims
  summed = _SUMMED.search(part.attributes)
  axes = re.findall(r'\d+', summed[1]) if summed else ()
  terms = math.prod(left[int(axis)] for axis in axes)
  return 2 * terms * math.prod(part.arrays[0].dims)


def _convolution(module, part: hlo.Instruction, target: str) -> int:
  """Counts 2 operations for each element of the output and of a filter."""
  left, right = (
    operand.arrays[0].dims for operand in module.operands(part)[:2]
  )
  output, kernel = part.arrays[0].dims, right
  # The kernels of gradients have the labels of the forward convolution.
  if target.endswith('BackwardFilter'):
    output, kernel = right, output
  elif target.endswith('BackwardInput'):
    output = left
  labels = _LABELS.search(part.attributes)
  features = kernel[labels[1].index('o')] if labels else 1
  return 2 * math.prod(output) * math.prod(kernel) // features


def _rate(module: hlo.Module, part: hlo.Instruction) -> float:
  operands = module.operands(part)
  arrays = operands[0].arrays if operands else ()
  dtype = arrays[0].dtype if arrays else 'bf16'
  return 2.0 if _NARROW.match(dtype) else _RATES.get(dtype, 1.0)


def read_bytes(module: hlo.Module, instruction: hlo.Instruction) -> int:
  """Returns the bytes that a kernel reads, of each operand once."""
  operands = {one.name: one for one in module.operands(instruction)}
  if instruction.opcode in _SLICES:
    return instruction.bytes
  if instruction.opcode == 'dynamic-update-slice':
    return module.operands(instruction)[1].bytes
  if instruction.opcode != 'fusion':
    return sum(one.bytes for one in operands.values())
  fused = module.computations[instruction.called['calls'][0]]
  needed = dict.fromkeys(operands, 0)
  for part in fused:
    if part.opcode == 'parameter':
      name = instruction.operands[int(part.operand_text)]
      read = _read(fused, part)
      needed[name] = min(operands[name].bytes, needed[name] + read)
  return sum(needed.values())


def _read(fused: hlo.Computation, value: hlo.Instruction) -> int:
  """Returns how many bytes of a value its users within a fusion need."""
  total = 0
  for user in fused:
    if value.name not in user.operands:
      continue
    first = user.operands[0] == value.name
    if user.opcode == 'bitcast':
      total += _read(fused, user)
    elif user.opcode in _SLICES and first:
      total += user.bytes
    elif user.opcode == 'dynamic-update-slice' and first:
      pass  # It is updated in place.
    else:
      return value.bytes
  return min(total, value.bytes)


def written_bytes(module: hlo.Module, instruction: hlo.Instruction) -> int:
  """Returns the bytes that a kernel writes, without its working space."""
  if instruction.opcode == 'dynamic-update-slice':
    return module.operands(instruction)[1].bytes
  if instruction.opcode == 'custom-call':
    arrays = instruction.arrays
    if len(arrays) > 1 and arrays[-1].dtype in ('s8', 'u8'):
      arrays = arrays[:-1]
    return sum(array.bytes for array in arrays)
  if instruction.opcode != 'fusion':
    return instruction.bytes
  fused = module.computations[instruction.called['calls'][0]]
  return _written(fused, fused.root)


def _written(fused: hlo.Computation, value: hlo.Instruction) -> int:
  parts = [fused.instructions[name] for name in value.operands]
  if value.opcode == 'tuple':
    return sum(_written(fused, part) for part in parts)
  if value.opcode == 'bitcast':
    return _written(fused, parts[0])
  if value.opcode == 'dynamic-update-slice':
    return parts[1].bytes
  return value.bytes
