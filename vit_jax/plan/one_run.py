"""Plans a run for a slice: compiles it, and where it does not fit, searches."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
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
  """A config by name.

  Attributes:
    name: `FILE:ARGUMENT`, as the user wrote it.
    config: as loaded, overrides applied.
  """

  name: str
  config: ml_collections.ConfigDict

  def changed(self, changes: Mapping[str, Any]) -> 'Run':
    """The run with other settings."""
    config = self.config.copy_and_resolve_references()
    with config.unlocked():
      config.update_from_flattened_dict(dict(changes))
    return Run(self.name, config)


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is known of a run on some devices.

  Attributes:
    run: its name and config, as far as planned as given.
    config: resolved.
    target: the slice; None without one.
    analysis: what depends on no device.
    compiled: by the compiler; None if there is none, or if nothing that fits
      could come of it, and then `memory` is what the step needs at least.
    memory: on a device; None if unknown.
    fix: the same run with settings that fit, if it does not.
    changes: the settings, in a `fix`.
    tried: all that was compiled on the way to it.
    ended: why no settings that fit were found, if they were looked for.
    error: why the compiler failed, other than for lack of memory; then nothing
      is known of memory and time.
  """

  run: Run
  config: ml_collections.ConfigDict
  target: devices.Target | None
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
  """How much to compile.

  Attributes:
    search: whether to look for settings that fit.
    max_tries: compilations of a search at most.
    max_seconds: of a search, after which none is begun.
  """

  search: bool = True
  max_tries: int = 6
  max_seconds: float = 3600.0


def analyse(run: Run) -> Plan:
  """The plan without any devices."""
  config = analysis.resolve(run.config, 'tpu')
  return Plan(run, config, None, analysis.analyse(config))


def plan(run: Run, target: devices.Target, effort: Effort, say: Say) -> Plan:
  """Plans a run on a slice.

  Raises:
    ValueError: the config is wrong, or does not fit the number of devices.
  """
  config = analysis.resolve(run.config, 'tpu')
  given = describe({}, run, target)
  found = analysis.analyse(config)
  usable = target.chip.hbm_usable_bytes
  if given.least() > usable:
    # The compiler would take minutes to say so.
    say(
      f'{run.name} needs over {given.least() / compiling.GIB:.0f} GiB a device'
      f' on {target}; {usable / compiling.GIB:.1f} are usable.'
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
  """Adds to a plan that does not fit the settings that do, if asked to."""
  if given.fits is not False or not effort.search:
    return given
  run, target = given.run, given.target
  tried = []
  if given.compiled:
    tried = [remedies.Tried(describe({}, run, target), given.compiled)]

  def compile_(candidate: remedies.Candidate) -> compiling.Compiled:
    changed = run.changed(candidate.changes)
    return compiling.compile_step(
      analysis.resolve(changed.config, 'tpu'), target
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
    config = analysis.resolve(changed.config, 'tpu')
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
  """The settings that may be tried in place of those given."""
  target, cache = given.target, {}
  for changes in remedies.settings(given.config, target.devices, target.slices):
    if changes:
      try:
        yield describe(changes, given.run, target, cache)
      except ValueError:
        # Beside the user's other settings, this is no config.
        continue


def describe(
  changes: Mapping[str, Any],
  run: Run,
  target: devices.Target,
  cache: dict | None = None,
) -> remedies.Candidate:
  """What is known of the memory of a run with changed settings.

  Args:
    changes: config key -> value.
    run: as given.
    target: the slice.
    cache: of the same run and slice; holds what accumulation does not change.
  """
  cache = {} if cache is None else cache
  config = analysis.resolve(run.changed(changes).config, 'tpu')
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
  held, of_gradients, groups, tensor = cache[key]
  images = config.data.batch_size // groups // steps
  return remedies.Candidate(
    changes,
    held=held,
    gradients=of_gradients[steps > 1],
    activations=analysis.account(config).activation_bytes * images // tensor,
    family=config.model.remat,
  )


def gradients(program: program_lib.Program, several: bool) -> int:
  """Bytes that a step needs on a device for gradients and whole parameters.

  See `vit_jax.training.gradients`, whose arrays these are.

  Args:
    program: of the slice.
    several: whether it accumulates: a micro-batch's gradients are there beside
      their sum.
  """
  config, layout = program.config, program.layout
  params = program.abstract_state.params
  whole = layout.gathered_params(params)
  manual = layout.is_manual(
    gradients_lib.has_global_masks(program.model, program.dropout_key)
  )
  shardings, dtype = (whole if manual else layout.updates(params)), None
  if manual and not several and layout.mesh.size > 1:
    dtype = layout.reduce_dtype
  total = _bytes_as(params, shardings, dtype)
  if several:
    rounds = manual and gradients_lib.gathers_rounded(program.model, layout)
    dtype = layout.reduce_dtype if rounds else None
    total += _bytes_as(params, shardings, dtype)
  split = layout.shard == 'all' and layout.mesh.shape['fsdp'] > 1
  if split and layout.gather == 'step':
    total += _bytes_as(params, whole, config.model.dtype)
  return total


def _bytes_as(params, shardings, kernels: str | None) -> int:
  """Bytes of a device with other shardings and another dtype of kernels."""

  def held(path, x, sharding):
    narrow = kernels and gradients_lib.uses_reduce_dtype(path)
    dtype = jnp.dtype(kernels) if narrow else x.dtype
    return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

  return analysis.bytes_held(
    jax.tree_util.tree_map_with_path(held, params, shardings)
  )
