"""Finds settings with which a run fits, cheapest in speed first, by trying.

Each candidate's memory is predicted: the state and the batch are exact, the
gradients follow from the state, and the activations are JAX's account of them
times a factor that every compiled candidate corrects. Only those with a chance
are compiled, and the first that the compiler says fits is the answer.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from vit_jax.plan import compiling

# Of the activations that JAX accounts for, what a compiler has kept at least.
# A candidate that does not fit even so is not compiled.
LEAST_KEPT = 0.15
# What is expected before anything was compiled.
EXPECTED_KEPT = 0.45
# Rows of a micro-batch on a device below which matrix units run half empty.
FULL_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Candidate:
  """Settings, and what is known of their memory on a device, in bytes.

  Attributes:
    changes: config key -> value, beside the config as given.
    held: state and batch.
    gradients: with the sum that accumulation needs.
    activations: of a micro-batch, by JAX's account.
    family: candidates of one family share the factor of the activations.
  """

  changes: Mapping[str, Any]
  held: int
  gradients: int
  activations: int
  family: str = ''

  def least(self) -> float:
    """Memory that it needs in any case."""
    return self.predict(LEAST_KEPT)

  def predict(self, kept: float) -> float:
    """Memory that it needs if the compiler keeps so much of the activations."""
    return self.held + self.gradients + kept * self.activations

  def kept(self, memory: int) -> float:
    """What the compiler kept, as `predict` takes it, from the memory."""
    kept = (memory - self.held - self.gradients) / max(self.activations, 1)
    return max(kept, 0.1)

  def __str__(self) -> str:
    return flags(self.changes) or 'as given'


@dataclasses.dataclass(frozen=True)
class Tried:
  """A candidate and what the compiler said."""

  candidate: Candidate
  compiled: compiling.Compiled


def flags(changes: Mapping[str, Any]) -> str:
  """The settings as they are written on the command line."""
  return ' '.join(f'--config.{key}={value}' for key, value in changes.items())


def settings(
  config: ml_collections.ConfigDict, devices: int, slices: int = 1
) -> Iterator[dict[str, Any]]:
  """Yields changes of a resolved config that save memory.

  Accumulation is first, which costs little while a micro-batch fills the
  devices; then a split state; recomputing, which costs up to a third of the
  speed; micro-batches of few rows; at last a smaller batch, another run.

  Args:
    config: resolved; its own settings are the first.
    devices: that the batch and the state can be split over.
    slices: groups of devices that a split state does not span.
  """
  mesh = config.mesh
  split = devices // slices // mesh.tensor
  rows = config.data.batch_size // (devices // mesh.tensor)
  whole: dict[str, Any] = {}
  optimizer = {'mesh.fsdp': split, 'mesh.shard': 'optimizer'}
  everything = {
    'mesh.fsdp': split,
    'mesh.shard': 'all',
    'mesh.gather': 'micro_batch',
  }
  if mesh.fsdp > 1:
    # As the user has split it; only more of it.
    for changes in (optimizer, everything):
      del changes['mesh.fsdp']
  shardings = [whole]
  if split > 1:
    if mesh.fsdp == 1 or mesh.shard == 'none':
      shardings.append(optimizer)
    if mesh.fsdp == 1 or (mesh.shard, mesh.gather) != ('all', 'micro_batch'):
      shardings.append(everything)
  accumulations = _accumulations(config.accumulation_steps, rows)
  full = [a for a in accumulations if rows // a >= FULL_ROWS] or [
    accumulations[0]
  ]
  recomputed = {'none': ('dots', 'full'), 'dots': ('full',)}
  stages = [(sharding, full) for sharding in shardings]
  remats = [
    {'model.remat': remat} for remat in recomputed.get(config.model.remat, ())
  ]
  stages += [
    (sharding | remat, full) for remat in remats for sharding in shardings
  ]
  last = shardings[-1] | (remats[-1] if remats else {})
  stages.append((last, [a for a in accumulations if a not in full]))
  for changes, steps in stages:
    for accumulation in steps:
      more = accumulation != config.accumulation_steps
      yield changes | ({'accumulation_steps': accumulation} if more else {})
  batch = config.data.batch_size
  while batch % 2 == 0 and batch // 2 >= devices:
    batch //= 2
    steps = _accumulations(1, batch // (devices // mesh.tensor))
    yield last | {'data.batch_size': batch, 'accumulation_steps': steps[-1]}


def _accumulations(given: int, rows: int) -> list[int]:
  """`given` and twice that as often as a device's rows allow."""
  steps = [given]
  while rows % (2 * steps[-1]) == 0:
    steps.append(2 * steps[-1])
  return steps


def find(
  candidates: Iterable[Candidate],
  compile_: Callable[[Candidate], compiling.Compiled],
  usable: int,
  *,
  tried: Sequence[Tried] = (),
  max_tries: int = 6,
  max_seconds: float = 3600.0,
  say: Callable[[str], None] = lambda text: None,
) -> tuple[Tried | None, list[Tried]]:
  """Compiles candidates that may fit, until the most wanted one is found.

  Each compilation corrects the predictions, so a candidate that was passed
  over may be tried after one that fits.

  Args:
    candidates: the most wanted first; taken as far as needed.
    compile_: compiles one.
    usable: bytes of memory on a device.
    tried: what was compiled before, which predictions start from.
    max_tries: compilations at most.
    max_seconds: none is begun after so many.
    say: takes lines on the progress.

  Returns:
    The most wanted that fits of all compiled, None if none does; and all that
    was compiled here.
  """
  kept = {one.candidate.family: _kept(one) for one in tried}
  source, known = iter(candidates), []
  done: dict[int, Tried] = {}
  best: int | None = None
  start = time.monotonic()

  def expected(candidate: Candidate) -> float:
    # Recomputing saves what it saves; the rest is as it was seen to be.
    seen = min(max(kept.values(), default=EXPECTED_KEPT), 1.0)
    return candidate.predict(kept.get(candidate.family, seen))

  def most_wanted() -> int | None:
    for index in itertools.count():
      if best is not None and index >= best:
        return None
      if index == len(known):
        candidate = next(source, None)
        if candidate is None:
          return None
        known.append(candidate)
      if index not in done and expected(known[index]) <= usable:
        return index

  while (index := most_wanted()) is not None:
    seconds = time.monotonic() - start
    if len(done) == max_tries or seconds > max_seconds:
      say(f'Ends after {len(done)} compilations, {seconds:.0f} s.')
      break
    candidate = known[index]
    before = [one.compiled.seconds for one in [*tried, *done.values()]]
    say(
      f'Trying {candidate}: expecting {expected(candidate) / compiling.GIB:.1f}'
      f' GiB of {usable / compiling.GIB:.1f}'
      + (f', in {statistics.mean(before):.0f} s.' if before else '.')
    )
    done[index] = one = Tried(candidate, compile_(candidate))
    kept[candidate.family] = _kept(one)
    needed = one.compiled.memory.total / compiling.GIB
    if one.compiled.fits:
      best = index
      say(f'It fits: {needed:.1f} GiB.')
    else:
      say(f'It needs {needed:.1f} GiB.')
  return done.get(best), list(done.values())


def _kept(one: Tried) -> float:
  return one.candidate.kept(one.compiled.memory.total)
