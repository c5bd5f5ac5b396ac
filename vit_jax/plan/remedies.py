"""Searches for settings that make a run fit, those that cost least speed first.

The search predicts each candidate's memory. The state and the batch are exact,
the gradients follow from the state, and the activations are JAX's account of
them times a factor that every compiled candidate corrects. It compiles only
candidates that may fit; the first that the compiler confirms is the answer.
"""

import collections
import dataclasses
import itertools
import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from vit_jax.plan import compiling
from vit_jax.sharding import mesh as mesh_lib

# Smallest share of JAX's account of activations that a compiler was seen to
# keep. A candidate that does not fit with this share is not compiled.
LEAST_KEPT = 0.15
# The share that is expected before anything was compiled.
EXPECTED_KEPT = 0.45
# With fewer rows of a micro-batch on a device, matrix units run half empty.
FULL_ROWS = 8
# After this many failures of one kind, candidates of other kinds come first.
MOST_FAILURES = 2


@dataclasses.dataclass(frozen=True)
class Candidate:
  """Settings, and what is known about their memory on a device, in bytes.

  Attributes:
    changes: config key -> value, the differences from the given config.
    held: state and batch.
    gradients: gradients, the sum that accumulation needs, and the parameters
      that a step gathers.
    activations: those of a micro-batch, by JAX's account.
    family: candidates of one family share the factor of the activations.
  """

  changes: Mapping[str, Any]
  held: int
  gradients: int
  activations: int
  family: str = ''

  def least(self) -> float:
    """Returns a lower bound of the memory."""
    return self.predict(LEAST_KEPT)

  def predict(self, kept: float) -> float:
    """Returns the memory if the compiler keeps this share of activations."""
    return self.held + self.gradients + kept * self.activations

  def kept(self, memory: int) -> float:
    """Returns the share that the compiler kept, given the total memory."""
    kept = (memory - self.held - self.gradients) / max(self.activations, 1)
    return max(kept, 0.1)

  @property
  def kind(self) -> tuple[tuple[str, Any], ...]:
    """The settings without accumulation."""
    return tuple(
      item for item in self.changes.items() if item[0] != 'accumulation_steps'
    )

  def __str__(self) -> str:
    return flags(self.changes) or 'as given'


@dataclasses.dataclass(frozen=True)
class Tried:
  """A candidate and the compiler's result."""

  candidate: Candidate
  compiled: compiling.Compiled


class Found(NamedTuple):
  """The result of a search.

  Attributes:
    answer: the most wanted candidate that fits; None if no compiled one fits.
    tried: all candidates that were compiled.
    ended: why the search ended without an answer; '' if it has one.
  """

  answer: Tried | None
  tried: list[Tried]
  ended: str


def flags(changes: Mapping[str, Any]) -> str:
  """Returns the settings as command-line flags."""
  return shlex.join(f'--config.{key}={value}' for key, value in changes.items())


def settings(
  config: ml_collections.ConfigDict, devices: int, slices: int = 1
) -> Iterator[dict[str, Any]]:
  """Yields changes of a complete config that save memory.

  The order is: accumulation, which costs little while a micro-batch fills the
  devices; splitting the state; recomputing, which costs up to a third of the
  speed; micro-batches of few rows; a smaller batch, which is a different run.

  Args:
    config: the complete config; its own settings ({}) come first.
    devices: number of devices for the batch and the state.
    slices: number of groups of devices; the state is split only within one.

  Raises:
    ValueError: the sizes of the mesh do not fit the devices.
  """
  sizes = (config.mesh[axis] for axis in mesh_lib.AXES)
  tensor = mesh_lib.axis_sizes(devices, *sizes)[2]
  rows = config.data.batch_size // (devices // tensor)
  shardings = _shardings(config.mesh, devices, slices)
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
    steps = _accumulations(1, batch // (devices // tensor))
    yield last | {'data.batch_size': batch, 'accumulation_steps': steps[-1]}


def _shardings(
  mesh: ml_collections.ConfigDict, devices: int, slices: int
) -> list[dict[str, Any]]:
  """Returns {} and the changes that split the state further than it is."""
  _, fsdp, tensor = mesh_lib.axis_sizes(
    devices, *(mesh[axis] for axis in mesh_lib.AXES), slices
  )
  split = mesh_lib.split_over(devices // slices // tensor)
  axes = {}
  if fsdp < split:
    axes = {'mesh.data': devices // tensor // split, 'mesh.fsdp': split}
  shardings: list[dict[str, Any]] = [{}]
  if split == 1:
    return shardings
  shard = 'none' if fsdp == 1 else mesh.shard
  if shard == 'none' or (axes and shard == 'optimizer'):
    shardings.append(axes | {'mesh.shard': 'optimizer'})
  if axes or (shard, mesh.gather) != ('all', 'micro_batch'):
    shardings.append(axes | {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'})
  return shardings


def _accumulations(given: int, rows: int) -> list[int]:
  """Returns `given` and its doublings that still divide a device's rows."""
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
) -> Found:
  """Compiles candidates that may fit until it knows the most wanted one.

  Each compilation corrects the predictions, so the search may try a skipped
  candidate even after another one fits. After two failures of one kind, other
  kinds come first, since the predictions for this kind are wrong.

  Args:
    candidates: candidates, the most wanted first; read as far as needed.
    compile_: compiles one candidate.
    usable: bytes of memory on a device.
    tried: earlier compilations, from which predictions start.
    max_tries: most compilations.
    max_seconds: seconds after which no compilation starts.
    say: is called with progress messages.
  """
  kept = {one.candidate.family: _kept(one) for one in tried}
  source, known = iter(candidates), []
  done: dict[int, Tried] = {}
  best: int | None = None
  failures = collections.Counter()
  ended = (
    'no other settings are predicted to fit: a larger slice, or a generation'
    ' with more memory, is needed'
  )
  start = time.monotonic()

  def expected(candidate: Candidate) -> float:
    # JAX's account knows what recomputing saves. For a family that was not
    # compiled yet, the compiler should keep a similar share of the rest.
    seen = min(max(kept.values(), default=EXPECTED_KEPT), 1.0)
    return candidate.predict(kept.get(candidate.family, seen))

  def most_wanted() -> int | None:
    later = None  # The most wanted candidate of a kind that failed.
    for index in itertools.count():
      if best is not None and index >= best:
        return None
      if index == len(known):
        candidate = next(source, None)
        if candidate is None:
          return later
        known.append(candidate)
      candidate = known[index]
      if index in done or expected(candidate) > usable:
        continue
      if failures[candidate.kind] < MOST_FAILURES:
        # A smaller batch is a different run, so it comes after all others.
        other_run = 'data.batch_size' in candidate.changes
        return later if other_run and later is not None else index
      if best is None and later is None:
        later = index

  while (index := most_wanted()) is not None:
    seconds = time.monotonic() - start
    reached = limit(max_tries - len(done), max_seconds - seconds)
    if reached:
      say(f'The search ends after {len(done)} compilations, {seconds:.0f} s.')
      ended = reached
      break
    candidate = known[index]
    before = [one.compiled.seconds for one in [*tried, *done.values()]]
    say(
      f'Trying {candidate}: expecting {expected(candidate) / compiling.GIB:.1f}'
      f' GiB of {usable / compiling.GIB:.1f}'
      + (f', in {statistics.mean(before):.0f} s.' if before else '.')
    )
    done[index] = one = Tried(candidate, compile_(candidate))
    needed = one.compiled.memory.total / compiling.GIB
    if one.compiled.error:
      say(f'The compiler fails: {one.compiled.error}')
    else:
      kept[candidate.family] = _kept(one)
      fits = one.compiled.fits
      say(f'It {"fits:" if fits else "needs"} {needed:.1f} GiB.')
    if one.compiled.fits:
      best = index
    else:
      failures[candidate.kind] += 1
  answer = done.get(best)
  return Found(answer, list(done.values()), '' if answer else ended)


def limit(tries: int, seconds: float) -> str:
  """Returns a message on the limit that is reached; '' if none is.

  Args:
    tries: compilations that are left.
    seconds: seconds that are left.
  """
  for name, left in (('max_tries', tries > 0), ('max_minutes', seconds >= 0)):
    if not left:
      return f'--{name} is reached; a larger value may find settings that fit'
  return ''


def _kept(one: Tried) -> float:
  return one.candidate.kept(one.compiled.memory.total)
