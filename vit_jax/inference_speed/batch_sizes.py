"""Searches for the fastest batch size and for the largest one that fits."""

import dataclasses
import math

import flax.linen as nn
import jax

from vit_jax.inference_speed import devices
from vit_jax.plan import compilers

_GROWS = 1.02  # A batch is faster if its speed exceeds the best by this factor.
_JUMP = 16  # Factor between batches that are compiled, but not timed.


@dataclasses.dataclass(frozen=True)
class Search:
  """Settings of a search over batch sizes.

  Attributes:
    growth: factor between one timed batch size and the next, from 1 on.
    patience: number of batches in a row that are no faster, after which no
      larger one is timed.
    max_seconds: batches that probably take longer a call are not timed.
    precision: a batch counts as the largest if it leaves at most this share of
      the memory free, or if one larger by this share does not fit; 0 finds the
      exact limit.
  """

  growth: int = 2
  patience: int = 2
  max_seconds: float = 10.0
  precision: float = 0.02


def search(
  device: devices.Device, model: nn.Module, size: int, settings: Search
) -> tuple[dict[int, float], int]:
  """Searches the batch sizes of one model at one image size.

  Batches grow until one does not fit. Then the interval between the largest
  that fits and the smallest that does not shrinks. Memory is about linear in
  the batch, so every other try is where the line through both crosses the
  limit; the rest bisect. What fits is timed as long as larger batches get
  faster. A batch for which the compiler fails does not fit, whatever the error
  says: besides the memory, the size of an array has limits.

  Returns:
    Batch size -> images a second, for all timed batches; and the largest batch
    that fits, 0 if none does.

  Raises:
    ValueError: the compiler fails for one image, and not for lack of memory.
  """
  limit, precision = device.memory_bytes, settings.precision
  taken: dict[int, int | None] = {0: 0}  # Batch -> bytes of its program.
  rates: dict[int, float] = {}
  low, high, batch_size = 0, math.inf, 1
  no_faster, timing, bisect = 0, True, False
  while True:
    program = _compile(device, model, size, batch_size)
    taken[batch_size] = program and program.bytes
    if not program or program.bytes > limit:
      high = batch_size
    else:
      low, seconds = batch_size, timing and _seconds(program)
      if seconds:
        rate = batch_size / seconds
        faster = rate > _GROWS * max(rates.values(), default=0)
        no_faster = 0 if faster else no_faster + 1
        rates[batch_size] = rate
        timing = settings.growth * seconds <= settings.max_seconds
      timing = bool(seconds and timing and no_faster < settings.patience)
    if high - low <= max(1, precision * low):
      return rates, low
    if low and taken[low] >= (1 - precision) * limit:
      return rates, low
    if high == math.inf:
      batch_size = low * (settings.growth if timing else _JUMP)
      continue
    batch_size = (low + high) // 2
    if taken[high] and not bisect:
      share = ((1 - precision / 2) * limit - taken[low]) / (
        taken[high] - taken[low]
      )
      batch_size = min(max(low + int(share * (high - low)), low + 1), high - 1)
    bisect = not bisect


def _compile(device, model, size, batch_size) -> devices.Program | None:
  """Returns the program; None if the compiler fails for several images."""
  try:
    return device.compile(model, size, batch_size)
  except jax.errors.JaxRuntimeError as error:
    if batch_size == 1 and not _out_of_memory(error):
      raise ValueError(
        f'the program for {size} px, batch 1, did not compile:'
        f' {compilers.one_line(error)}'
      ) from error
  return None


def _seconds(program: devices.Program) -> float | None:
  """Returns the seconds of a call; None if the memory does not suffice."""
  try:
    return program.seconds()
  except jax.errors.JaxRuntimeError as error:
    # The device may have less memory than it states.
    if not _out_of_memory(error):
      raise
  return None


def _out_of_memory(error: Exception) -> bool:
  return 'RESOURCE_EXHAUSTED' in str(error)
