"""Searches for the fastest batch size and for the largest one that fits."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax

from vit_jax.inference_speed import forward
from vit_jax.plan import compilers

_GROWS = 1.02  # A batch is faster if its speed exceeds the best by this factor.
_SMALLEST = 2  # Factor between batches where `Search.growth` is too large.
_FURTHEST = 1024  # Most times by which a try exceeds the largest known fit.


@dataclasses.dataclass(frozen=True)
class Search:
  """Settings of a search over batch sizes.

  Attributes:
    first: the first batch size; smaller ones are tried only if it does not fit.
    growth: factor between one batch size and the next. Where that batch does
      not fit or takes too long, sizes double up to the limit instead.
    patience: number of batches in a row that are no faster, after which no
      larger one is timed.
    max_seconds: batches that probably take longer a call are not timed.
    precision: a batch counts as the largest if it leaves at most this share of
      the memory free, or if one larger by this share does not fit; 0 finds the
      exact limit.
  """

  first: int = 1
  growth: int = 2
  patience: int = 2
  max_seconds: float = 10.0
  precision: float = 0.02


@dataclasses.dataclass(frozen=True)
class Found:
  """The result for a model at an image size on a device.

  Attributes:
    rates: batch size -> images a second, for all timed batches.
    largest: the largest batch that fits; 0 if none does.
  """

  rates: Mapping[int, float]
  largest: int


def search(
  device: forward.Device, model: nn.Module, size: int, settings: Search
) -> Found:
  """Searches the batch sizes of one model at one image size.

  A batch for which the compiler fails does not fit, whatever the error says:
  besides the memory, the size of an array has limits.

  Raises:
    ValueError: the compiler fails at the first batch, and not for lack of
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
          f'the program for {size} px, batch {batch_size}, did not compile:'
          f' {compilers.one_line(error)}'
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
  """Times growing batches until they are no faster or do not fit."""
  rates: dict[int, float] = {}
  best = still = 0
  batch_size, growth = settings.first, settings.growth
  limit = math.inf  # The smallest batch that is known not to fit.
  while still < settings.patience and batch_size < limit:
    seconds = _seconds(compile_batch(batch_size))
    if seconds is None:
      limit, growth = batch_size, _SMALLEST
      if rates:
        batch_size = growth * max(rates)
      elif batch_size > 1:
        batch_size = max(1, batch_size // settings.growth)
      continue
    rate = rates[batch_size] = batch_size / seconds
    still = 0 if rate > _GROWS * best else still + 1
    best = max(best, rate)
    if growth * seconds > settings.max_seconds:
      growth = _SMALLEST
    if growth * seconds > settings.max_seconds:
      break
    batch_size *= growth
  return rates


def _seconds(program: forward.Program | None) -> float | None:
  """Returns the seconds of a call; None if the program does not fit."""
  try:
    return program and program.seconds()
  except jax.errors.JaxRuntimeError as error:
    # The device may have less memory than it states.
    if _out_of_memory(error):
      return None
    raise


def _out_of_memory(error: Exception) -> bool:
  return 'RESOURCE_EXHAUSTED' in str(error)


def largest_batch(
  need: Callable[[int], int | None],
  known: Mapping[int, int | None],
  limit: int,
  precision: float,
) -> int:
  """Returns the largest batch whose program fits; 0 if not even one image fits.

  Memory is about linear in the batch, so the next try is where the line through
  the nearest two known batches crosses the limit. Every third try instead
  bisects the interval between the largest batch that fits and the smallest one
  that does not.

  Args:
    need: maps a batch to its bytes, or None if the compiler refuses it; slow.
    known: the same mapping for some batches.
    limit: bytes that a program may take.
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
  """Returns the batch at which a line through two known batches meets `aim`.

  Args:
    sizes: batch -> bytes.
    low: the largest batch that fits.
    high: the smallest batch that does not fit; None if there is none.
    aim: bytes.

  Returns:
    The batch; None if fewer than two are known, or the line does not rise.
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
