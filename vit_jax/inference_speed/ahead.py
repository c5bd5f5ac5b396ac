"""Compiles programs for an absent TPU and estimates their time."""

import functools

import flax.linen as nn
import jax

from vit_jax.inference_speed import forward
from vit_jax.plan import chips, compilers, devices, estimate, hlo


def find(
  generation: str, memory_bytes: int | None, correction: float
) -> forward.Device:
  """Returns one device of a TPU generation, as the TPU compiler knows it.

  Args:
    generation: a generation, such as 'v3'.
    memory_bytes: memory that a program may take; None for the compiler's limit.
    correction: real speed divided by the estimated speed; see `plan.figures`.

  Raises:
    ValueError: there is no such generation, or no TPU compiler.
  """
  if generation not in chips.CHIPS:
    raise ValueError(
      f'--device={generation}: expected local, or a TPU generation to compile'
      f' for: {", ".join(chips.CHIPS)}.'
    )
  # The compiler knows only whole slices; take one device of the smallest.
  target = devices.of_generation(generation)[0]
  device = devices.compile_only(target)[0]
  return forward.Device(
    name=f'TPU {generation} {target.device}',
    platform='tpu',
    memory_bytes=memory_bytes or target.chip.hbm_usable_bytes,
    compile=functools.partial(_compile, device, target.chip, correction),
    unit='core',
    cores=target.cores // target.devices,
    estimated=True,
  )


def _compile(
  device: jax.Device,
  chip: chips.Chip,
  correction: float,
  model: nn.Module,
  size: int,
  batch_size: int,
) -> forward.Program:
  sharding = jax.sharding.SingleDeviceSharding(device)
  lowered = forward.lower(model, size, batch_size, sharding)
  try:
    compiled = lowered.compile()
  finally:
    compilers.give_memory_back()
  memory = compilers.read_memory(compiled.memory_analysis(), compilers.Memory())

  def seconds() -> float:
    module = hlo.parse(compiled.as_text())
    return estimate.estimate(module, chip).seconds / correction

  return forward.Program(memory.total, seconds)
