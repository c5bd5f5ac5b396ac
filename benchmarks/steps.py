"""Training steps on synthetic data: their configs, figures and table."""

import copy
import dataclasses
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import flags
from flax import traverse_util
from ml_collections import config_flags

from vit_jax import accounting, sharding
from vit_jax.plan import chips, compilers
from vit_jax.runtime import installed, stopwatch, text_table
from vit_jax.training import program as program_lib

# Environment variables that can change the measurements begin with these.
_PREFIXES = ('JAX_', 'LIBTPU_', 'OMP_', 'XLA_')
# Title of a column -> the figure, and its format.
_COLUMNS = {
  'ms': ('step_ms.median', '.1f'),
  'spread': ('step_ms.spread', '.1%'),
  'images/s': ('images_per_sec', '.1f'),
  '/device': ('images_per_sec_per_device', '.1f'),
  'MFU': ('mfu', '.1%'),
  'times': ('ratio', '.3f'),
  'paired': ('paired_ratio', '.3f'),
  'compile s': ('compile_sec', '.1f'),
  'GiB': ('memory_gib', '.2f'),
}


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
    facts: what `of_steps` needs, and `params`, `compile_sec` (with the
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


def say(text: str) -> None:
  """Prints to stderr, because stdout is for the JSON."""
  print(text, file=sys.stderr, flush=True)


def of_steps(
  seconds: Mapping[str, Sequence[float]], facts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
  """Returns the figures of training steps that took turns.

  Args:
    seconds: name -> the seconds of a step, one number a turn.
    facts: name -> at least `batch_size`, `devices`, `device_kind` (JAX's or
      CUDA's name) and `forward_macs`, the multiply-accumulates of one image's
      forward pass.

  Returns:
    Name -> the facts, `step_ms` (see `stopwatch.statistics`), `images_per_sec`,
    `images_per_sec_per_device`, `mfu`, and the `stopwatch.ratios` of the time
    per image. `mfu` is in 0..1, and None if the device's peak is not known. The
    backward pass has twice the multiply-accumulates of the forward pass, and
    each counts as two operations.
  """
  an_image = {
    name: np.divide(values, facts[name]['batch_size'])
    for name, values in seconds.items()
  }
  ratios, results = stopwatch.ratios(an_image), {}
  for name, found in facts.items():
    rate = 1 / float(np.median(an_image[name]))
    per_device = rate / found['devices']
    peak = chips.peak_flops(found['device_kind'])
    results[name] = {
      'step_ms': stopwatch.statistics(np.multiply(seconds[name], 1000)),
      'images_per_sec': rate,
      'images_per_sec_per_device': per_device,
      'mfu': peak and per_device * 3 * 2 * found['forward_macs'] / peak,
      **found,
      **ratios[name],
    }
  return results


def publish(
  results: Mapping[str, Mapping[str, Any]], title: str, **setting: Any
) -> None:
  """Prints the table to stderr, and the JSON to stdout.

  Args:
    results: name -> figures of `of_steps`.
    title: the line above the table.
    **setting: is written besides the flags, or in place of those.
  """
  say(f'\n{title}\n\n{table(results)}\n')
  own = flags.FLAGS.get_flags_for_module(sys.argv[0])
  given = {flag.name: flag.value for flag in own if flag.name != 'version'}
  written = {
    'benchmark': 'train_step',
    'setting': given | setting,
    'environment': {
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'commit': installed.commit(),
      'versions': installed.versions(),
      'variables': {
        k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)
      },
    },
    'results': results,
  }
  print(json.dumps(written))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns a row for each result; columns without any figure are left out."""
  flat = [traverse_util.flatten_dict(r, sep='.') for r in results.values()]
  rows = [['', *results]]
  for title, (key, form) in _COLUMNS.items():
    cells = [result[key] for result in flat]
    if None not in cells:
      rows.append([title, *(format(cell, form) for cell in cells)])
  return text_table.aligned([*zip(*rows, strict=True)])
