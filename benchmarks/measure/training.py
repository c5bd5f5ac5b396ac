"""Training steps on synthetic data, for interleaved measurements."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.measure import peaks, plain_vit, timing
from vit_jax import accounting, sharding
from vit_jax.training import program as program_lib


@dataclasses.dataclass(frozen=True)
class Step:
  """One compiled training step, with functions that make its arguments.

  Attributes:
    init: makes a state on the devices.
    make_batch: makes a batch on the devices.
    step: compiled `(state, batch) -> (state, others)`; donates the state.
    abstract_state: shapes, dtypes and shardings of the state.
    batch_size: images per step, of all devices together.
    devices: the number of devices.
    forward_macs: multiply-accumulates of one image's forward pass.
    facts: figures known before the step runs: `params`, `trace_sec`,
      `compile_sec`, `memory_gib`.
  """

  init: Callable[[], Any]
  make_batch: Callable[[], dict[str, jax.Array]]
  step: Callable[[Any, Any], tuple[Any, Any]]
  abstract_state: Any
  batch_size: int
  devices: int
  forward_macs: int
  facts: dict[str, Any]

  def turn(self, steps: int, warmup: int) -> float:
    """Returns the seconds per step, from a fresh state.

    The state lives for one turn only, so that the states of all compared steps
    need not fit into memory together.

    Args:
      steps: the number of timed steps, which are dispatched without waiting.
      warmup: the number of untimed steps before them.
    """
    state, batch = self.init(), self.make_batch()
    for _ in range(warmup):
      state, _ = self.step(state, batch)
    jax.block_until_ready((state, batch))

    def run():
      nonlocal state
      for _ in range(steps):
        state, others = self.step(state, batch)
      return state, others

    return timing.seconds_of(run) / steps


def ours(config: ml_collections.ConfigDict) -> Step:
  """Returns the same step that training runs.

  Args:
    config: the complete config.
  """
  layout = sharding.build(**config.mesh)
  program = program_lib.Program(config, layout)
  return _step(
    config,
    layout,
    program.model,
    program.init_state,
    lambda: program.train_step.lower(
      program.abstract_state, program.abstract_batch
    ),
    program.abstract_state,
    program.abstract_batch,
    _count(program.shapes.params),
  )


def plain(config: ml_collections.ConfigDict) -> Step:
  """Returns the plain form of the same step, see `plain_vit`.

  The batch is split over the devices; everything else is copied to each device.

  Raises:
    ValueError: the config's model or optimizer has no plain form.
  """
  layout = sharding.build(**config.mesh)
  program = program_lib.Program(config, layout)
  model = plain_vit.build(config, program.model)
  init, step = plain_vit.make_step(config, model)
  everywhere = NamedSharding(layout.mesh, P())
  key = jax.random.key(config.seed)
  state = jax.eval_shape(init, key)
  expected = _count(program.shapes.params)
  if (params := _count(state[0])) != expected:
    raise ValueError(
      f'the plain model has {params:,} parameters but {config.model.name} has'
      f' {expected:,}: they are not the same model.'
    )
  batch = {k: program.abstract_batch[k] for k in ('image', 'label')}
  by_rows = sharding.batch_sharding(layout.mesh)
  return _step(
    config,
    layout,
    program.model,
    jax.jit(lambda: init(key), out_shardings=everywhere),
    lambda: jax.jit(
      step,
      in_shardings=(everywhere, by_rows),
      out_shardings=everywhere,
      donate_argnums=0,
    ).lower(state, batch),
    state,
    batch,
    params,
  )


def _step(
  config: ml_collections.ConfigDict,
  layout: sharding.Layout,
  model: nn.Module,
  init: Callable[[], Any],
  lower: Callable[[], Any],
  abstract_state: Any,
  batch: Mapping[str, jax.ShapeDtypeStruct],
  params: int,
) -> Step:
  start = time.perf_counter()
  lowered = lower()
  traced = time.perf_counter()
  compiled = lowered.compile()
  done = time.perf_counter()
  return Step(
    init=init,
    make_batch=_batch_maker(batch, config.num_classes),
    step=compiled,
    abstract_state=abstract_state,
    batch_size=config.data.batch_size,
    devices=layout.mesh.size,
    forward_macs=accounting.forward_macs(
      model, tuple(config.image_size), config.channels
    ),
    facts={
      'params': params,
      'trace_sec': traced - start,
      'compile_sec': done - traced,
      'memory_gib': _memory_gib(compiled),
    },
  )


def _batch_maker(
  batch: Mapping[str, jax.ShapeDtypeStruct], num_classes: int
) -> Callable[[], dict[str, jax.Array]]:
  """Returns a jitted function that makes a random batch on its devices."""

  def make():
    key = jax.random.key(0)
    arrays = {}
    for name, x in batch.items():
      if name == 'image':
        # Pixels are in 0..255 even if the dtype has a larger range.
        arrays[name] = jax.random.randint(key, x.shape, 0, 256).astype(x.dtype)
      elif name == 'label':
        arrays[name] = jax.random.randint(key, x.shape, 0, num_classes, x.dtype)
      elif name == 'mask':
        arrays[name] = jnp.ones(x.shape, x.dtype)
      else:
        arrays[name] = jnp.zeros(x.shape, x.dtype)
    return arrays

  return jax.jit(
    make, out_shardings={name: x.sharding for name, x in batch.items()}
  )


def _memory_gib(compiled: jax.stages.Compiled) -> float | None:
  """Returns a device's memory for arguments, results, temporaries, in GiB."""
  memory = compiled.memory_analysis()
  if memory is None:
    return None
  size = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes
  )
  return size / 2**30


def _count(params: Any) -> int:
  return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def figures(
  steps: Mapping[str, Step],
  seconds: Mapping[str, Sequence[float]],
  peak: float | None,
) -> dict[str, dict[str, Any]]:
  """Converts measured step times to the reported figures.

  Args:
    steps: name -> step.
    seconds: name -> seconds per step, for each turn.
    peak: TFLOP/s of a device; None leaves the MFU out.

  Returns:
    Name -> `step_ms` (see `timing.statistics`), `images_per_sec`,
    `images_per_sec_per_device`, `mfu`, `batch_size`, the step's facts, and
    the ratios of `timing.compare` for the time per image.
  """
  an_image = {
    name: [value / steps[name].batch_size for value in values]
    for name, values in seconds.items()
  }
  results = {}
  for name, compared in timing.compare(an_image).items():
    step = steps[name]
    rate = 1 / compared['median']
    results[name] = {
      'step_ms': timing.statistics([1000 * value for value in seconds[name]]),
      'images_per_sec': rate,
      'images_per_sec_per_device': rate / step.devices,
      'mfu': peaks.mfu(rate, step.forward_macs, step.devices, peak),
      'batch_size': step.batch_size,
      **step.facts,
      **{key: value for key, value in compared.items() if 'ratio' in key},
    }
  return results
