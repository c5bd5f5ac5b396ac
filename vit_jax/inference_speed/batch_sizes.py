"""Searches for the fastest batch size and for the largest one that fits."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax

from vit_jax.inference_speed import devices
from vit_jax.plan import compilers

_GROWS = 1.02  # A batch is faster if its speed exceeds the best by this factor.
_SMALLEST = 2  # Factor between batches where `Search.growth` is too large.
_FURTHEST = 1024  # Most times by which a try exceeds the largest known fit.


@dataclasses.dataclass(frozen=True)
class Search:
  """Settings of a search over batch sizes.

  Attributes:
    growth: factor between one batch size and the next, from 1 on. Where that
      batch does not fit or takes too long, sizes double instead.
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

  A batch for which the compiler fails does not fit, whatever the error says:
  besides the memory, the size of an array has limits.

  Returns:
    Batch size -> images a second, for all timed batches; and the largest batch
    that fits, 0 if none does.

  Raises:
    ValueError: the compiler fails for one image, and not for lack of memory.
  """
  limit = device.memory_bytes
  sizes: dict[int, int | None] = {}

  def compile_batch(batch_size: int) -> devices.Program | None:
    program = None
    try:
      program = device.compile(model, size, batch_size)
    except jax.errors.JaxRuntimeError as error:
      if batch_size == 1 and not _out_of_memory(error):
        raise ValueError(
          f'the program for {size} px, batch 1, did not compile:'
          f' {compilers.one_line(error)}'
        ) from error
    sizes[batch_size] = program and program.bytes
    return program if program and program.bytes <= limit else None

  rates = _rates(compile_batch, settings)
  return rates, largest_batch(compile_batch, sizes, limit, settings.precision)


def _rates(
  compile_batch: Callable[[int], devices.Program | None], settings: Search
) -> dict[int, float]:
  """Times growing batches until they are no faster or do not fit."""
  rates: dict[int, float] = {}
  batch_size, growth, still = 1, settings.growth, 0
  limit = math.inf  # The smallest batch that is known not to fit.
  while still < settings.patience and batch_size < limit:
    program, seconds = compile_batch(batch_size), None
    try:
      seconds = program and program.seconds()
    except jax.errors.JaxRuntimeError as error:
      # The device may have less memory than it states.
      if not _out_of_memory(error):
        raise
    if seconds is None:
      limit, growth = batch_size, _SMALLEST
      batch_size = growth * max(rates, default=1)
      continue
    rate = batch_size / seconds
    grows = rate > _GROWS * max(rates.values(), default=0)
    still = 0 if grows else still + 1
    rates[batch_size] = rate
    if growth * seconds > settings.max_seconds:
      growth = _SMALLEST
    if growth * seconds > settings.max_seconds:
      break
    batch_size *= growth
  return rates


def _out_of_memory(error: Exception) -> bool:
  return 'RESOURCE_EXHAUSTED' in str(error)


def largest_batch(
  compile_batch: Callable[[int], object],
  sizes: Mapping[int, int | None],
  limit: int,
  precision: float,
) -> int:
  """Returns the largest batch whose program fits; 0 if not even one image fits.

  Memory is about linear in the batch, so the next try is where the line through
  the nearest two known batches crosses the limit. Every third try instead
  bisects the interval between the largest batch that fits and the smallest one
  that does not.

  Args:
    compile_batch: adds a batch to `sizes`; slow.
    sizes: batch -> bytes of its program, or None if the compiler refuses it;
      has at least one batch.
    limit: bytes that a program may take.
    precision: see `Search`.
  """
  for bisect in itertools.cycle((False, False, True)):
    fitting = sorted(b for b, n in sizes.items() if n and n <= limit)
    low = fitting[-1] if fitting else 0
    larger = [b for b in sizes if b > low]
    high = min(larger, default=_FURTHEST * low + 1)
    if high - low <= max(1, precision * low):
      return low
    if low and sizes[low] >= (1 - precision) * limit:
      return low
    batch_size = (low + high) // 2 if larger else 2 * low
    points = [b for b in (*fitting, high) if sizes.get(b)][-2:]
    if len(points) == 2 and not bisect:
      first, second = points
      rise = (sizes[second] - sizes[first]) / (second - first)
      if rise > 0:
        aim = (1 - precision / 2) * limit
        batch_size = first + int((aim - sizes[first]) / rise)
    compile_batch(min(max(batch_size, low + 1), high - 1))
