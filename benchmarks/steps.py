"""Training steps on synthetic data, and configs that differ in some keys."""

import copy
import dataclasses
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import flags
from ml_collections import config_flags

from vit_jax import accounting, sharding
from vit_jax.plan import compilers
from vit_jax.runtime import stopwatch
from vit_jax.training import program as program_lib


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


@dataclasses.dataclass(frozen=True)
class Step:
  """One compiled training step.

  Attributes:
    program: makes a state on the devices.
    inputs: a batch on the devices, and a teacher's parameters, which are zeros.
    run: `(state, *inputs) -> (state, others)`, compiled; donates the state.
    facts: what `report.of_steps` needs, and `params`, `compile_sec` (with the
      trace), and `memory_gib`, a device's memory by the compiler.
  """

  program: program_lib.Program
  inputs: tuple[Any, ...]
  run: jax.stages.Compiled
  facts: dict[str, Any]

  def turn(self, steps: int, warmup: int) -> float:
    """Returns the seconds per step, from a fresh state.

    The state lives for one turn only, so that the states of all compared steps
    need not fit into memory together.

    Args:
      steps: the number of timed steps, which are dispatched without waiting.
      warmup: the number of untimed steps before them.
    """
    state, others = self.program.init_state(), None

    def run(count):
      nonlocal state, others
      for _ in range(count):
        state, others = self.run(state, *self.inputs)
      return state, others

    jax.block_until_ready(run(warmup))
    return stopwatch.seconds_of(lambda: run(steps)) / steps


def build(config: ml_collections.ConfigDict) -> Step:
  """Compiles the step that training runs.

  Args:
    config: the complete config.

  Raises:
    ValueError: see `vit_jax.training.program.Program`.
  """
  layout = sharding.build(**config.mesh)
  program = program_lib.Program(config, layout)
  state, batch = program.abstract_state, program.abstract_batch
  start = time.perf_counter()
  compiled = program.train_step.lower(*program.arguments).compile()
  seconds = time.perf_counter() - start
  memory = compilers.read_memory(compiled.memory_analysis(), compilers.Memory())
  facts = {
    'batch_size': config.data.batch_size,
    'devices': layout.mesh.size,
    'device_kind': jax.devices()[0].device_kind,
    'forward_macs': accounting.forward_macs(
      program.model, tuple(config.image_size), config.channels
    ),
    'params': sum(x.size for x in jax.tree.leaves(state.params)),
    'compile_sec': seconds,
    'memory_gib': memory.total / compilers.GIB,
  }
  rng = np.random.default_rng(0)
  above = {'image': 256, 'label': config.num_classes}
  # No step reads the other arrays, which are zeros here.
  numbers = {
    name: rng.integers(above.get(name, 1), size=x.shape).astype(x.dtype)
    for name, x in batch.items()
  }
  shardings = jax.tree.map(lambda x: x.sharding, batch)
  batch = jax.device_put(numbers, shardings)
  frozen = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), program.teacher
  )
  return Step(program, (batch, *frozen), compiled, facts)


def peak_gib() -> float | None:
  """Returns this process's peak memory on a device; None if unknown."""
  stats = jax.local_devices()[0].memory_stats() or {}
  peak = stats.get('peak_bytes_in_use')
  return peak and peak / 2**30
