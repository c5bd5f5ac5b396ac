"""Training steps on synthetic data, and configs that differ in some keys."""

import copy
import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from absl import flags
from ml_collections import config_flags

from benchmarks import plain_vit
from vit_jax import accounting, sharding
from vit_jax import config as config_lib
from vit_jax.plan import chips
from vit_jax.runtime import stopwatch
from vit_jax.training import program as program_lib

# ImageNet's sizes, for configs that take them from the data.
_NUM_CLASSES = 1000
_NUM_EXAMPLES = 1_281_167


def changed(
  config: ml_collections.ConfigDict, text: str
) -> ml_collections.ConfigDict:
  """Returns a copy of a config with some keys changed.

  Args:
    config: the config to copy.
    text: `model.scan=true,accumulation_steps=2`, as on the command line; commas
      within brackets belong to a value: `image_size=(64,64)`.

  Raises:
    ValueError: the text does not have that form, a key does not exist, or a
      value has the wrong type.
  """
  config = copy.deepcopy(config)
  parts = re.split(r',(?![^()]*\))', text)
  words = ['', *(f'--config.{part}' for part in parts)]
  values = flags.FlagValues()
  try:
    config_flags.DEFINE_config_dict(
      'config', config, flag_values=values, sys_argv=words
    )
    values(words)
  except (AttributeError, KeyError, TypeError, flags.Error) as error:
    raise ValueError(
      f'{text!r}: expected KEY=VALUE[,KEY=VALUE...] of the config: {error}'
    ) from error
  return config


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Resolves a config without opening its data.

  Sizes that the config leaves open are ImageNet's.
  """
  config = copy.deepcopy(config)
  config.data.dataset = config.data.dataset or 'synthetic'
  config_lib.validate(config)
  return config_lib.resolve(
    config,
    num_examples=config.data.num_examples or _NUM_EXAMPLES,
    num_classes=config.num_classes or _NUM_CLASSES,
    whole=_NUM_EXAMPLES,
  )


@dataclasses.dataclass(frozen=True)
class Step:
  """One compiled training step, with functions that make its arguments.

  Attributes:
    init: makes a state on the devices.
    make_batch: makes a batch on the devices.
    run: `(state, batch) -> (state, others)`, compiled; donates the state.
    devices: the number of devices.
    forward_macs: multiply-accumulates of one image's forward pass.
    facts: figures known before the step runs: `batch_size`, `params`,
      `trace_sec`, `compile_sec`, and `memory_gib`, a device's memory for
      arguments, results and temporaries.
  """

  init: Callable[[], Any]
  make_batch: Callable[[], dict[str, jax.Array]]
  run: Callable[[Any, Any], tuple[Any, Any]]
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
    state, batch, others = self.init(), self.make_batch(), None

    def run(count):
      nonlocal state, others
      for _ in range(count):
        state, others = self.run(state, batch)
      return state, batch, others

    jax.block_until_ready(run(warmup))
    return stopwatch.seconds_of(lambda: run(steps)) / steps


def build(config: ml_collections.ConfigDict, *, plain: bool = False) -> Step:
  """Compiles the step that training runs, or its plain form.

  Args:
    config: the complete config.
    plain: whether to build `plain_vit`'s step. It splits the batch over the
      devices, and copies everything else to each device.

  Raises:
    ValueError: the config's model or optimizer has no plain form, or see
      `vit_jax.training.program.Program`.
  """
  layout = sharding.build(**config.mesh)
  program = program_lib.Program(config, layout)
  state, batch = program.abstract_state, program.abstract_batch
  init, step = program.init_state, program.train_step
  params = _count(state.params)
  if plain:
    init, step = plain_vit.make_step(config, program.model)
    init = jax.jit(init, out_shardings=layout.whole)
    state = jax.eval_shape(init)
    shardings = layout.whole, sharding.batch_sharding(layout.mesh)
    step = jax.jit(
      step,
      in_shardings=shardings,
      out_shardings=layout.whole,
      donate_argnums=0,
    )
    if _count(state[0]) != params:
      raise ValueError(
        f'the plain model has {_count(state[0]):,} parameters but'
        f' {config.model.name} has {params:,}: they are not the same model.'
      )

  def make_batch():
    key, above = jax.random.key(0), {'image': 256, 'label': config.num_classes}
    # No step reads the other arrays, which are zeros here.
    return {
      name: jax.random.randint(key, x.shape, 0, above.get(name, 1)).astype(
        x.dtype
      )
      for name, x in batch.items()
    }

  start = time.perf_counter()
  lowered = step.lower(state, batch)
  traced = time.perf_counter()
  compiled = lowered.compile()
  done = time.perf_counter()
  memory = compiled.memory_analysis()
  return Step(
    init,
    jax.jit(
      make_batch, out_shardings=jax.tree.map(lambda x: x.sharding, batch)
    ),
    compiled,
    layout.mesh.size,
    accounting.forward_macs(
      program.model, tuple(config.image_size), config.channels
    ),
    {
      'batch_size': config.data.batch_size,
      'params': params,
      'trace_sec': traced - start,
      'compile_sec': done - traced,
      'memory_gib': (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
      )
      / 2**30,
    },
  )


def _count(params: Any) -> int:
  return sum(x.size for x in jax.tree.leaves(params))


def peak_gib() -> float | None:
  """Returns this process's peak memory on a device; None if unknown."""
  stats = jax.local_devices()[0].memory_stats() or {}
  peak = stats.get('peak_bytes_in_use')
  return peak and peak / 2**30


def mfu(
  images_per_sec: float, forward_macs: int, device_kind: str
) -> float | None:
  """Returns the model FLOPs utilisation of training, in 0..1.

  Args:
    images_per_sec: the rate of a device.
    forward_macs: multiply-accumulates of one image's forward pass. The backward
      pass has twice as many, and each counts as two operations.
    device_kind: JAX's or CUDA's name of the device; the result is None if its
      peak is not known.
  """
  peak = chips.peak_flops(device_kind)
  return peak and images_per_sec * 3 * 2 * forward_macs / peak
