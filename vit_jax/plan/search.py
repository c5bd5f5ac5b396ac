"""Plans a run: compiles it, and searches for settings or a slice that fit.

The search for settings predicts each attempt's memory. The state and the batch
are exact, the gradients follow from the state, and the activations are JAX's
account of them times a factor that every compiled attempt corrects. It compiles
only attempts that may fit. Those that cost least speed come first.
"""

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from absl import logging

from vit_jax.plan import analysis, compilers, devices, figures
from vit_jax.plan.compilers import GIB, Compiled, Memory
from vit_jax.sharding import mesh as mesh_lib
from vit_jax.training import gradients as gradients_lib
from vit_jax.training import program as program_lib

# Smallest share of JAX's account of activations that a compiler was seen to
# keep. An attempt that does not fit with this share is not compiled.
LEAST_KEPT = 0.15
# The share that is expected before anything was compiled.
EXPECTED_KEPT = 0.45
# With fewer rows of a micro-batch on a device, matrix units run half empty.
FULL_ROWS = 8
_LIMIT = '--max_tries is reached; a larger value may find settings that fit'
_NONE_LEFT = (
  'no other settings are predicted to fit: a larger slice, or a generation with'
  ' more memory, is needed'
)


@dataclasses.dataclass(frozen=True)
class Run:
  """A config and its name, `FILE:ARGUMENT` as the user wrote it."""

  name: str
  config: ml_collections.ConfigDict

  def changed(self, changes: Mapping[str, Any]) -> 'Run':
    """Returns the run with other settings."""
    config = self.config.copy_and_resolve_references()
    with config.unlocked():
      config.update_from_flattened_dict(dict(changes))
    return Run(self.name, config)


@dataclasses.dataclass(eq=False)
class Attempt:
  """A run with some settings on a slice, and what is known about its memory.

  Attributes:
    run: the run with the settings.
    target: the slice.
    changes: config key -> value, the differences from the given config.
    config: the complete config.
    held: bytes of state and batch on a device.
    gradients: bytes of gradients, of the sum that accumulation needs, and of
      the parameters that a step gathers.
    activations: bytes of those of a micro-batch, by JAX's account.
    compiled: the compiler's result, once there is one.
  """

  run: Run
  target: devices.Target
  changes: Mapping[str, Any]
  config: ml_collections.ConfigDict
  held: Memory
  gradients: int
  activations: int
  compiled: Compiled | None = None

  def predict(self, kept: float = LEAST_KEPT) -> float:
    """Returns the memory if the compiler keeps this share of activations."""
    return self.held.total + self.gradients + kept * self.activations

  @property
  def kept(self) -> float:
    """The share that the compiler kept."""
    rest = self.compiled.memory.total - self.held.total - self.gradients
    return max(rest / max(self.activations, 1), 0.1)

  @property
  def fits(self) -> bool | None:
    """Whether it fits; None if the compiler failed."""
    return None if self.compiled.error else self.compiled.fits

  def compile(self) -> None:
    """Compiles it, unless it cannot fit: that would take minutes."""
    usable, least = self.target.chip.hbm_usable_bytes, round(self.predict())
    if least > usable:
      memory = dataclasses.replace(
        self.held, temporaries=least - self.held.total
      )
      self.compiled = Compiled(memory, usable)
      return
    what = f'{self.run.name} on {self.target} {flags(self.changes)}'.rstrip()
    logging.info('Compiling %s, which takes minutes.', what)
    self.compiled = found = compilers.compile_step(self.config, self.target)
    logging.info(
      'It needs %.1f of %.1f GiB. %s',
      *(found.memory.total / GIB, usable / GIB, found.error),
    )

  def figures(self, correction: float) -> dict[str, Any]:
    """Returns its figures; see `figures.of_run`."""
    found = figures.of_run(
      self.run.name, self.config, self.target, self.compiled, correction
    )
    return found | {'changes': dict(self.changes) or None}


def flags(changes: Mapping[str, Any]) -> str:
  """Returns the settings as command-line flags."""
  return shlex.join(f'--config.{key}={value}' for key, value in changes.items())


def suiting(
  run: Run, targets: Sequence[devices.Target]
) -> list[devices.Target]:
  """Returns the targets whose devices the mesh and the batch fit.

  Args:
    run: the run.
    targets: devices of one platform.

  Raises:
    ValueError: the config is wrong, or suits none of the targets.
  """
  config, found = analysis.resolve(run.config, targets[0].platform), []
  for target in targets:
    try:
      devices.check(config, target)
      found.append(target)
    except ValueError as error:
      if len(targets) == 1:
        raise
      reason = error
  if not found:
    raise ValueError(f'No {target.kind} suits the run. The largest: {reason}')
  return found


def plan(
  run: Run,
  targets: Sequence[devices.Target],
  *,
  correction: float = 1.0,
  fix: bool = True,
  max_tries: int = 6,
) -> dict[str, Any]:
  """Plans a run on the smallest of some slices that it fits.

  The memory per device falls as the number of devices grows. So this function
  starts with the smallest slice whose predicted memory suffices, and tries the
  next smaller or larger one until it knows the answer. If the run fits no
  slice, it searches for other settings.

  Args:
    run: the run.
    targets: slices that suit it, by size; see `suiting`.
    correction: real speed divided by the estimated speed.
    fix: whether to search for other settings.
    max_tries: limit of all compilations after the first.

  Returns:
    The figures, see `figures.of_run`; if no slice was found to fit, those of
    the largest tried one.

  Raises:
    ValueError: the config is wrong.
  """

  @functools.cache
  def attempt(index: int) -> Attempt:
    return describe({}, run, targets[index])

  def may_fit(index: int) -> bool:
    usable = targets[index].chip.hbm_usable_bytes
    return attempt(index).predict(EXPECTED_KEPT) <= usable

  index = next(filter(may_fit, range(len(targets))), len(targets) - 1)
  tried: dict[int, Attempt] = {}
  tries = max_tries + 1
  while 0 <= index < len(targets) and index not in tried and tries:
    tried[index] = one = attempt(index)
    one.compile()
    tries -= one.compiled.seconds is not None
    index += -1 if one.fits else 1
  fitting = [place for place, one in tried.items() if one.fits]
  given = tried[min(fitting, default=max(tried))]
  found = given.figures(correction)
  if 0 <= index < len(targets) and index not in tried:
    found['search_ended'] = _LIMIT
  elif given.fits is False and fix:
    best, why = find(given, _candidates(given), min(tries, max_tries))
    found['fix'] = best and best.figures(correction)
    found['search_ended'] = why
  return found


def _candidates(given: Attempt) -> list[Attempt]:
  """Returns what a search may try instead of the given settings."""
  found, cache, target = [], {}, given.target
  for changes in settings(given.config, target.devices, target.slices)[1:]:
    # Some changes contradict the user's other settings.
    with contextlib.suppress(ValueError):
      found.append(describe(changes, given.run, target, cache))
  return found


def describe(
  changes: Mapping[str, Any],
  run: Run,
  target: devices.Target,
  cache: dict | None = None,
) -> Attempt:
  """Returns what is known about the memory of a run with changed settings.

  Args:
    changes: config key -> value.
    run: the run as given.
    target: the slice.
    cache: reused between calls for the same run and slice; holds the figures
      that accumulation does not change.

  Raises:
    ValueError: the config is wrong, or does not fit the number of devices.
  """
  cache = {} if cache is None else cache
  changed = run.changed(changes)
  config = analysis.resolve(changed.config, target.platform)
  steps = config.accumulation_steps
  key = repr({**changes, 'accumulation_steps': None})
  if key not in cache:
    program = compilers.build(config, target)
    cache[key] = (
      compilers.held(program),
      [gradient_bytes(program, several) for several in (False, True)],
      program.layout.mesh.shape['tensor'],
    )
  held, gradients, tensor = cache[key]
  images = config.data.batch_size // (target.devices // tensor) // steps
  activations = analysis.account(config).activation_bytes * images // tensor
  return Attempt(
    *(changed, target, changes, config, held, gradients[steps > 1]), activations
  )


def gradient_bytes(program: program_lib.Program, several: bool) -> int:
  """Returns the bytes on a device for gradients and gathered parameters.

  `vit_jax.training.gradients` makes these arrays.

  Args:
    program: the program, built for the slice.
    several: whether the step accumulates several micro-batches. It then holds
      a micro-batch's gradients beside their sum.
  """
  config, layout, manual = program.config, program.layout, program.manual
  params = program.abstract_state.params
  trained, _ = program.tuning.split(params)
  shardings = (
    layout.gathered_params(trained) if manual else layout.updates(trained)
  )
  reduced = manual and not several and layout.mesh.size > 1
  total = _bytes_as(
    trained, shardings, layout.reduce_dtype if reduced else None
  )
  if several:
    total += _bytes_as(trained, shardings, None)
  split = layout.shard == 'all' and layout.mesh.shape['fsdp'] > 1
  if split and layout.gather == 'step':
    total += _bytes_as(
      params,
      layout.gathered_params(params),
      config.model.dtype,
      program.tuning.adapted,
    )
  return total


def _bytes_as(
  params, shardings, kernels: str | None, except_for: Collection[str] = ()
) -> int:
  """Returns a tree's bytes on a device with other shardings and kernel dtype.

  Args:
    params: tree of arrays or shapes.
    shardings: tree of the shardings to assume.
    kernels: dtype of the arrays that are reduced in a narrow dtype; None for
      their own.
    except_for: names of such arrays that keep their own dtype.
  """

  def with_sharding(path, x, sharding):
    name = '/'.join(entry.key for entry in path)
    narrow = kernels and gradients_lib.uses_reduce_dtype(path)
    narrow = narrow and name not in except_for
    dtype = jnp.dtype(kernels) if narrow else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

  return analysis.bytes_held(
    jax.tree_util.tree_map_with_path(with_sharding, params, shardings)
  )


def settings(
  config: ml_collections.ConfigDict, devices: int, slices: int = 1
) -> list[dict[str, Any]]:
  """Returns changes of a complete config that save memory.

  The order is: accumulation, which costs little while a micro-batch fills the
  devices; splitting the state; recomputing, which costs up to a third of the
  speed; micro-batches of few rows.

  Args:
    config: the complete config; its own settings ({}) come first.
    devices: number of devices for the batch and the state.
    slices: number of groups of devices; the state is split only within one.

  Raises:
    ValueError: the sizes of the mesh do not fit the devices.
  """
  sizes = (config.mesh[axis] for axis in mesh_lib.AXES)
  _, fsdp, tensor = mesh_lib.axis_sizes(devices, *sizes, slices)
  devices //= tensor
  splits = _shardings(config.mesh, fsdp, devices, slices)
  recomputed = {'none': ('dots', 'full'), 'dots': ('full',)}
  remats = [{'model.remat': x} for x in recomputed.get(config.model.remat, ())]
  remats = [{}, *remats]
  rows, given = config.data.batch_size // devices, config.accumulation_steps
  steps = [given]
  while rows % (2 * steps[-1]) == 0:
    steps.append(2 * steps[-1])
  full = [n for n in steps if rows // n >= FULL_ROWS] or [given]

  def accumulating(n: int) -> dict[str, Any]:
    return {} if n == given else {'accumulation_steps': n}

  return [
    *(s | r | accumulating(n) for r in remats for s in splits for n in full),
    *(
      splits[-1] | remats[-1] | accumulating(n) for n in steps if n not in full
    ),
  ]


def _shardings(
  mesh: ml_collections.ConfigDict, fsdp: int, devices: int, slices: int
) -> list[dict[str, Any]]:
  """Returns {} and the changes that split the state further than it is.

  Args:
    mesh: the section of the config.
    fsdp: the number of parts of the state.
    devices: number of devices, or of groups that share each image.
    slices: number of slices; the state is split only within one.
  """
  split = mesh_lib.split_over(devices // slices)
  if split == 1:
    return [{}]
  axes = {}
  if fsdp < split:
    axes = {'mesh.data': devices // split, 'mesh.fsdp': split}
  found = [axes | {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'}]
  if fsdp == 1 or mesh.shard != 'all':
    found.insert(0, axes | {'mesh.shard': 'optimizer'})
  given = {f'mesh.{key}': value for key, value in mesh.items()}
  return [{}, *(changes for changes in found if given | changes != given)]


def find(
  given: Attempt, candidates: Sequence[Attempt], tries: int
) -> tuple[Attempt | None, str | None]:
  """Compiles candidates that may fit until it knows the most wanted one.

  Each compilation corrects the predictions, so the search may try a skipped
  candidate even after another one fits.

  Args:
    given: what does not fit. If it was compiled, predictions start from it.
    candidates: candidates, the most wanted first.
    tries: most compilations.

  Returns:
    The most wanted candidate that fits, or None; and why the search ended
    without an answer, or None.
  """
  usable = given.target.chip.hbm_usable_bytes
  kept, answer = {}, None
  if given.compiled.seconds is not None:
    kept[given.config.model.remat] = given.kept

  def expected(one: Attempt) -> float:
    # JAX's account knows what recomputing saves. Where no step recomputed so,
    # the compiler should keep a similar share of the rest.
    seen = min(max(kept.values(), default=EXPECTED_KEPT), 1.0)
    return one.predict(kept.get(one.config.model.remat, seen))

  tried = 0
  while True:
    better = candidates[: answer and candidates.index(answer)]
    may_fit = (o for o in better if not o.compiled and expected(o) <= usable)
    one = next(may_fit, None)
    if one is None or tried == tries:
      break
    one.compile()
    tried += 1
    if not one.compiled.error:
      kept[one.config.model.remat] = one.kept
    if one.fits:
      answer = one
  if answer:
    return answer, None
  return None, _LIMIT if one else _NONE_LEFT
