"""Plans a run for a slice: compiles it and, if needed, searches for a fit."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.plan import analysis, compiling, devices, remedies
from vit_jax.training import gradients as gradients_lib
from vit_jax.training import program as program_lib

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Run:
  """A config and its name.

  Attributes:
    name: `FILE:ARGUMENT`, as the user wrote it.
    config: the loaded config, with overrides applied.
  """

  name: str
  config: ml_collections.ConfigDict

  def changed(self, changes: Mapping[str, Any]) -> 'Run':
    """Returns the run with other settings."""
    config = self.config.copy_and_resolve_references()
    with config.unlocked():
      config.update_from_flattened_dict(dict(changes))
    return Run(self.name, config)


@dataclasses.dataclass(frozen=True)
class Plan:
  """The result of planning a run on some devices.

  Attributes:
    run: the run as given; in a `fix`, the run with `changes` applied.
    config: the complete config.
    target: the slice; None if there is none.
    analysis: the figures that depend on no device.
    compiled: the compiler's result. None if there is no compiler, or if the
      step cannot fit and was not compiled; then `memory` is a lower bound.
    memory: the memory of one device; None if unknown.
    fix: if the run does not fit, the same run with settings that fit.
    changes: in a `fix`, the settings that differ from the given run.
    tried: all candidates that the search compiled.
    ended: why a search found no settings that fit; else ''.
    error: why the compiler failed, if not for lack of memory; then memory and
      time are unknown.
  """

  run: Run
  config: ml_collections.ConfigDict
  target: devices.AnyTarget | None
  analysis: analysis.Analysis
  compiled: compiling.Compiled | None = None
  memory: compiling.Memory | None = None
  fix: 'Plan | None' = None
  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  tried: tuple[remedies.Tried, ...] = ()
  ended: str = ''
  error: str = ''

  @property
  def fits(self) -> bool | None:
    if self.compiled is None:
      return None if self.memory is None else False
    return self.compiled.fits


@dataclasses.dataclass(frozen=True)
class Effort:
  """Limits for compilation.

  Attributes:
    search: whether to look for settings that fit.
    max_tries: most compilations in a search.
    max_seconds: seconds after which a search starts no further compilation.
  """

  search: bool = True
  max_tries: int = 6
  max_seconds: float = 3600.0


def analyse(run: Run, platform: str = 'tpu') -> Plan:
  """Returns the plan without any devices; see `analysis.resolve`."""
  config = analysis.resolve(run.config, platform)
  return Plan(run, config, None, analysis.analyse(config))


def plan(run: Run, target: devices.AnyTarget, effort: Effort, say: Say) -> Plan:
  """Plans a run on a slice.

  Raises:
    ValueError: the config is wrong, or does not fit the number of devices.
  """
  config = analysis.resolve(run.config, target.platform)
  given = describe({}, run, target)
  found = analysis.analyse(config)
  usable = target.chip.hbm_usable_bytes
  if given.least() > usable:
    # The compiler would take minutes to come to the same answer.
    say(
      f'{run.name} needs over {given.least() / compiling.GIB:.0f} GiB a device'
      f' on {target}; only {usable / compiling.GIB:.1f} GiB are usable.'
    )
    known = compiling.held(compiling.build(config, target))
    memory = dataclasses.replace(
      known, temporaries=round(given.least()) - known.total
    )
    result = Plan(run, config, target, found, None, memory)
  else:
    say(f'Compiling {run.name} for {target}, which takes minutes.')
    compiled = compiling.compile_step(config, target)
    if compiled.error:
      say(f'The compiler fails: {compiled.error}')
      return Plan(run, config, target, found, error=compiled.error)
    result = Plan(run, config, target, found, compiled, compiled.memory)
  return with_fix(result, effort, say)


def with_fix(given: Plan, effort: Effort, say: Say) -> Plan:
  """If a plan does not fit and `effort` allows it, adds settings that fit."""
  if given.fits is not False or not effort.search:
    return given
  run, target = given.run, given.target
  tried = []
  if given.compiled:
    tried = [remedies.Tried(describe({}, run, target), given.compiled)]

  def compile_(candidate: remedies.Candidate) -> compiling.Compiled:
    changed = run.changed(candidate.changes)
    return compiling.compile_step(
      analysis.resolve(changed.config, target.platform), target
    )

  answer, done, ended = remedies.find(
    _candidates(given),
    compile_,
    target.chip.hbm_usable_bytes,
    tried=tried,
    max_tries=effort.max_tries,
    max_seconds=effort.max_seconds,
    say=say,
  )
  fix = None
  if answer:
    changes = answer.candidate.changes
    changed = run.changed(changes)
    config = analysis.resolve(changed.config, target.platform)
    fix = Plan(
      changed,
      config,
      target,
      analysis.analyse(config),
      answer.compiled,
      answer.compiled.memory,
      changes=changes,
    )
  return dataclasses.replace(given, fix=fix, tried=(*tried, *done), ended=ended)


def _candidates(given: Plan) -> Iterator[remedies.Candidate]:
  """Yields the settings that a search may try instead of the given ones."""
  target, cache = given.target, {}
  for changes in remedies.settings(given.config, target.devices, target.slices):
    if changes:
      try:
        yield describe(changes, given.run, target, cache)
      except ValueError:
        # The changes contradict the user's other settings.
        continue


def describe(
  changes: Mapping[str, Any],
  run: Run,
  target: devices.AnyTarget,
  cache: dict | None = None,
) -> remedies.Candidate:
  """Returns what is known about the memory of a run with changed settings.

  Args:
    changes: config key -> value.
    run: the run as given.
    target: the slice.
    cache: reused between calls for the same run and slice; holds the figures
      that accumulation does not change.
  """
  cache = {} if cache is None else cache
  config = analysis.resolve(run.changed(changes).config, target.platform)
  steps = config.accumulation_steps
  key = tuple(
    item for item in changes.items() if item[0] != 'accumulation_steps'
  )
  if key not in cache:
    program = compiling.build(config, target)
    mesh = program.layout.mesh
    cache[key] = (
      compiling.held(program).total,
      [gradients(program, several) for several in (False, True)],
      mesh.size // mesh.shape['tensor'],
      mesh.shape['tensor'],
    )
  held, gradient_bytes, groups, tensor = cache[key]
  images = config.data.batch_size // groups // steps
  return remedies.Candidate(
    changes,
    held=held,
    gradients=gradient_bytes[steps > 1],
    activations=analysis.account(config).activation_bytes * images // tensor,
    family=config.model.remat,
  )


def gradients(program: program_lib.Program, several: bool) -> int:
  """Returns the bytes on a device for gradients and gathered parameters.

  `vit_jax.training.gradients` makes these arrays.

  Args:
    program: the program, built for the slice.
    several: whether the step accumulates several micro-batches. It then holds
      a micro-batch's gradients beside their sum.
  """
  config, layout = program.config, program.layout
  params = program.abstract_state.params
  trained, _ = program.tuning.split(params)
  whole = layout.gathered_params(trained)
  manual = program.manual
  shardings, dtype = (whole if manual else layout.updates(trained)), None
  if manual and not several and layout.mesh.size > 1:
    dtype = layout.reduce_dtype
  total = _bytes_as(trained, shardings, dtype)
  if several:
    total += _bytes_as(trained, shardings, None)
  split = layout.shard == 'all' and layout.mesh.shape['fsdp'] > 1
  if split and layout.gather == 'step':
    whole = layout.gathered_params(params)
    total += _bytes_as(
      params, whole, config.model.dtype, except_for=program.tuning.adapted
    )
  return total


def _bytes_as(
  params,
  shardings,
  kernels: str | None,
  *,
  except_for: Collection[str] = (),
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
