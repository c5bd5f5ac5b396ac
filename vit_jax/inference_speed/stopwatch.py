"""Times programs on this machine's device."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from vit_jax import topology
from vit_jax.inference_speed import forward
from vit_jax.plan import chips, compilers

# A CPU does not say how much of its memory a program may use.
CPU_BYTES = compilers.GIB
_FEWEST_CALLS = 3
_RANDOM = 2**16  # Random numbers to draw; larger arrays repeat them.


@dataclasses.dataclass(frozen=True)
class Timing:
  """Settings for timing a program.

  Attributes:
    warm_up: untimed calls that come first.
    calls: most timed calls.
    max_seconds: seconds after which no further call is made, once three are
      timed.
  """

  warm_up: int = 10
  calls: int = 30
  max_seconds: float = 10.0


def find(memory_bytes: int | None, timing: Timing) -> forward.Device:
  """Returns the first device that JAX finds.

  Args:
    memory_bytes: memory that a program may take; None for the device's own
      limit, or CPU_BYTES if the device states none.
    timing: how to time programs.
  """
  device = jax.devices()[0]
  stats = device.memory_stats() or {}
  cores = _cores(device.device_kind)
  return forward.Device(
    name=device.device_kind,
    platform=device.platform,
    memory_bytes=memory_bytes or stats.get('bytes_limit') or CPU_BYTES,
    compile=functools.partial(_compile, device, timing),
    unit='core' if cores else 'device',
    cores=cores or 1,
  )


def _cores(device_kind: str) -> int | None:
  """Returns the TensorCores in one JAX device; None if it has none."""
  chip = chips.of_device_kind(device_kind)
  if not chip:
    return None
  generation = topology.GENERATIONS[chip.name]
  return generation.cores_per_chip // generation.devices_per_chip


def _compile(
  device: jax.Device,
  timing: Timing,
  model: nn.Module,
  size: int,
  batch_size: int,
) -> forward.Program:
  sharding = jax.sharding.SingleDeviceSharding(device)
  compiled = forward.lower(model, size, batch_size, sharding).compile()
  memory = compilers.read_memory(compiled.memory_analysis(), compilers.Memory())

  def seconds() -> float:
    params = _params(device, model, size)
    _, images = forward.shapes(model, size, batch_size)
    images = jax.device_put(_filled(images), device)
    return median_seconds(
      lambda: jax.block_until_ready(compiled(params, images)), timing
    )

  return forward.Program(memory.total, seconds)


def median_seconds(
  call: Callable[[], Any],
  timing: Timing,
  clock: Callable[[], float] = time.perf_counter,
) -> float:
  """Returns the median seconds of a call.

  Args:
    call: the function to time; returns when its work is done.
    timing: how many calls to make.
    clock: returns the time in seconds.
  """
  start = clock()
  for _ in range(timing.warm_up):
    call()
    if clock() - start > timing.max_seconds:
      break
  took: list[float] = []
  while len(took) < timing.calls:
    before = clock()
    call()
    took.append(clock() - before)
    if len(took) >= _FEWEST_CALLS and sum(took) > timing.max_seconds:
      break
  return statistics.median(took)


# All batch sizes of an entry share these; the cache holds one model at a time.
@functools.lru_cache(maxsize=1)
def _params(device: jax.Device, model: nn.Module, size: int) -> Any:
  params, _ = forward.shapes(model, size, 1)
  return jax.device_put(jax.tree.map(_filled, params), device)


def _filled(shape: jax.ShapeDtypeStruct) -> np.ndarray:
  """Returns random numbers, since some devices compute faster on zeros."""
  rng = np.random.default_rng(0)
  if shape.dtype == np.uint8:
    numbers = rng.integers(256, size=_RANDOM, dtype=np.uint8)
  else:
    numbers = 0.02 * rng.standard_normal(_RANDOM, dtype=np.float32)
  return np.resize(numbers, shape.shape).astype(shape.dtype)
