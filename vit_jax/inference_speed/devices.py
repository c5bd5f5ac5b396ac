"""The timed program, compiled for this machine's device or an absent TPU."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import topology
from vit_jax.models import shared
from vit_jax.plan import chips, compilers, estimate, hlo
from vit_jax.plan import devices as plan_devices
from vit_jax.runtime import stopwatch

# A CPU does not say how much of its memory a program may use.
CPU_BYTES = compilers.GIB
_RANDOM = 2**16  # Random numbers to draw; larger arrays repeat them.


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled forward pass.

  Attributes:
    bytes: memory that it takes: arguments, results, temporaries and code.
    seconds: returns the seconds of one call.
  """

  bytes: int
  seconds: Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Device:
  """A device on which programs run, or for which they are compiled.

  Attributes:
    name: name for people: 'TPU v3 core', 'NVIDIA H200'.
    platform: 'tpu', 'gpu' or 'cpu', which determines dtype and attention.
    memory_bytes: memory that a program may take.
    cores: TensorCores of a TPU, by which the figures are divided; else 1.
    target: the device, which may be known only to the compiler.
    seconds: returns the seconds of a call of a compiled program.
  """

  name: str
  platform: str
  memory_bytes: int
  cores: int
  target: jax.Device
  seconds: Callable[[jax.stages.Compiled], float]

  @property
  def unit(self) -> str:
    """Unit of speeds and batches: 'core' for a TensorCore, else 'device'."""
    return 'core' if self.platform == 'tpu' else 'device'

  def compile(self, model: nn.Module, size: int, batch_size: int) -> Program:
    """Compiles `(params, images) -> logits`, float32 [batch_size, classes].

    Raises:
      JaxRuntimeError: the compiler finds too little memory or fails.
    """

    def classify(params, images):
      images = shared.normalize(images)
      return model.apply({'params': params}, images, train=False)[0]

    sharding = jax.sharding.SingleDeviceSharding(self.target)
    shape = (batch_size, size, size, 3)
    init = functools.partial(model.init, train=False)
    params = jax.eval_shape(
      init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32)
    )['params']
    lowered = jax.jit(classify, in_shardings=sharding).lower(
      params, jax.ShapeDtypeStruct(shape, jnp.uint8)
    )
    try:
      compiled = lowered.compile()
    finally:
      compilers.give_memory_back()
    memory = compilers.read_memory(
      compiled.memory_analysis(), compilers.Memory()
    )
    return Program(memory.total, functools.partial(self.seconds, compiled))


def local(timing: Mapping[str, Any]) -> Device:
  """Returns the first device that JAX finds, which runs the programs.

  Args:
    timing: how to time programs, see `stopwatch.median_seconds`.
  """
  device = jax.devices()[0]
  stats = device.memory_stats() or {}
  cores = 1
  if name := chips.generation_of(device.device_kind):
    generation = topology.GENERATIONS[name]
    cores = generation.cores_per_chip // generation.devices_per_chip

  def seconds(compiled):
    shapes, _ = compiled.args_info
    arguments = jax.device_put(jax.tree.map(_filled, shapes), device)
    return stopwatch.median_seconds(lambda: compiled(*arguments), **timing)

  return Device(
    device.device_kind,
    device.platform,
    stats.get('bytes_limit') or CPU_BYTES,
    cores,
    device,
    seconds,
  )


def absent(generation: str) -> Device:
  """Returns one device of a TPU generation, whose compiler estimates times.

  Args:
    generation: a generation, such as 'v3'.

  Raises:
    ValueError: there is no such generation, or no TPU compiler.
  """
  if generation not in chips.CHIPS:
    raise ValueError(
      f'--device={generation}: expected local, or a TPU generation to compile'
      f' for: {", ".join(chips.CHIPS)}.'
    )
  plan_devices.leave_hardware_alone()
  # The compiler knows only whole slices; take one device of the smallest.
  target = plan_devices.of_generation(generation)[0]

  def seconds(compiled):
    program = hlo.parse(compiled.as_text())
    return estimate.estimate(program, target.chip).seconds

  return Device(
    f'TPU {generation} {target.device}',
    'tpu',
    target.chip.hbm_usable_bytes,
    target.cores // target.devices,
    plan_devices.compile_only(target)[0],
    seconds,
  )


def _filled(shape: jax.stages.ArgInfo) -> np.ndarray:
  """Returns random numbers, since some devices compute faster on zeros."""
  rng = np.random.default_rng(0)
  if shape.dtype == np.uint8:
    numbers = rng.integers(256, size=_RANDOM, dtype=np.uint8)
  else:
    numbers = 0.02 * rng.standard_normal(_RANDOM, dtype=np.float32)
  return np.resize(numbers, shape.shape).astype(shape.dtype)
