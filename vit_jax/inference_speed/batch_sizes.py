"""Looks for the fastest batch, and for the largest that fits."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax

from vit_jax.inference_speed import forward
from vit_jax.plan import compiling

_GROWS = 1.02  # A speed that is no more than this times the best stands still.
_FURTHEST = 1024  # Times the largest known batch that is tried next.


@dataclasses.dataclass(frozen=True)
class Search:
  """How batches are tried.

  Attributes:
    first: the smallest, unless it does not fit.
    growth: each is so many times the one before, while speed grows.
    patience: batches that are no faster, after which no larger one is timed.
    max_seconds: none is timed that is likely to take longer than that a call.
    precision: a batch counts as the largest when it leaves no more than this
      part of the memory free, or when one larger by this part does not fit; 0
      looks for the very largest.
  """

  first: int = 1
  growth: int = 2
  patience: int = 2
  max_seconds: float = 10.0
  precision: float = 0.02


@dataclasses.dataclass(frozen=True)
class Found:
  """What was found of a model at a size, on a device.

  Attributes:
    rates: batch -> images a second, of those that were timed.
    largest: the largest batch that fits; 0 if none does.
  """

  rates: Mapping[int, float]
  largest: int


def search(
  device: forward.Device, model: nn.Module, size: int, settings: Search
) -> Found:
  """Tries batches of one model at one size.

  A batch for which the compiler fails does not fit, whatever it says: there
  are limits to the size of an array besides the memory.

  Raises:
    ValueError: the compiler fails at the first batch, but not for lack of
      memory.
  """
  needed: dict[int, int | None] = {}

  def compile_batch(batch_size: int) -> forward.Program | None:
    program = None
    try:
      program = device.compile(model, size, batch_size)
    except jax.errors.JaxRuntimeError as error:
      if batch_size == settings.first and not _out_of_memory(error):
        raise ValueError(
          f'the program of {size} px, batch {batch_size}, did not compile:'
          f' {compiling.one_line(error)}'
        ) from error
    needed[batch_size] = program and program.bytes
    fits = program is not None and program.bytes <= device.memory_bytes
    return program if fits else None

  def need(batch_size: int) -> int | None:
    compile_batch(batch_size)
    return needed[batch_size]

  rates = _rates(compile_batch, settings)
  return Found(
    rates,
    largest_batch(need, needed, device.memory_bytes, settings.precision),
  )


def _rates(
  compile_batch: Callable[[int], forward.Program | None], settings: Search
) -> dict[int, float]:
  """Images a second by batch, until they stop growing or memory ends."""
  rates: dict[int, float] = {}
  best = still = 0
  batch_size = settings.first
  while still < settings.patience:
    program = compile_batch(batch_size)
    if program is None:
      if rates or batch_size == 1:
        break
      batch_size = max(1, batch_size // settings.growth)
      continue
    try:
      seconds = program.seconds()
    except jax.errors.JaxRuntimeError as error:
      # The device may hold less than it said.
      if _out_of_memory(error):
        break
      raise
    rate = rates[batch_size] = batch_size / seconds
    still = 0 if rate > _GROWS * best else still + 1
    best = max(best, rate)
    if settings.growth * seconds > settings.max_seconds:
      break
    if batch_size < settings.first:  # The next one did not fit.
      break
    batch_size *= settings.growth
  return rates


def _out_of_memory(error: Exception) -> bool:
  return 'RESOURCE_EXHAUSTED' in str(error)


def largest_batch(
  need: Callable[[int], int | None],
  known: Mapping[int, int | None],
  limit: int,
  precision: float,
) -> int:
  """The largest batch whose program fits; 0 if not even one image does.

  Memory is about a line over the batch, so the next try is where the line
  through the nearest two crosses the limit, and every third halves what is
  between the largest that fits and the smallest that does not.

  Args:
    need: batch -> bytes; None if the compiler refuses it. Slow.
    known: the same, of some batches.
    limit: bytes.
    precision: see `Search`.
  """
  sizes = dict(known)
  for turn in itertools.count(1):
    fitting = [b for b, size in sizes.items() if size and size <= limit]
    low = max(fitting, default=0)
    high = min((b for b in sizes if b > low), default=None)
    if high is not None and high - low <= max(1, precision * low):
      return low
    if low and sizes[low] >= (1 - precision) * limit:
      return low
    guess = None
    if turn % 3:
      guess = _crossing(sizes, low, high, (1 - precision / 2) * limit)
    if high is None:
      batch_size = min(guess or 2 * low, _FURTHEST * low)
      batch_size = max(batch_size, low + 1)
    else:
      batch_size = guess or (low + high) // 2
      batch_size = min(max(batch_size, low + 1), high - 1)
    sizes[batch_size] = need(batch_size)
  raise AssertionError('unreachable')


def _crossing(
  sizes: Mapping[int, int | None], low: int, high: int | None, aim: float
) -> int | None:
  """The batch at which the line through two known ones is at `aim` bytes.

  Args:
    sizes: batch -> bytes.
    low: the largest that fits.
    high: the smallest that does not; None if there is none.
    aim: bytes.

  Returns:
    None if there are no two, or the line does not rise.
  """
  points = sorted(b for b, size in sizes.items() if size and b <= low)
  if high is not None and sizes[high]:
    points.append(high)
  if len(points) < 2:
    return None
  first, second = points[-2:]
  rise = sizes[second] - sizes[first]
  if rise <= 0:
    return None
  return first + int((aim - sizes[first]) * (second - first) / rise)
