"""Measures steps of a run on this machine, with random images."""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.plan import analysis, as_json, compiling, devices, one_run, peaks
from vit_jax.training import program as program_lib

_WARM_UP_STEPS = 2
_ROUNDS = 5


def check_platform(name: str) -> None:
  """Selects the JAX platform to measure on.

  Args:
    name: 'cpu', 'gpu', or 'local' for JAX's default.

  Raises:
    ValueError: `name` is 'gpu' and JAX can use no GPU.
  """
  if name == 'cpu':
    jax.config.update('jax_platforms', 'cpu')
  elif name == 'gpu' and jax.default_backend() != 'gpu':
    raise ValueError(
      f'--topology=gpu: JAX sees no GPU here, only {jax.default_backend()}.'
      ' pip install "vit-paper-jax[cuda]" gets the NVIDIA plugin.'
    )


def figures(run: one_run.Run, steps: int, say: one_run.Say) -> dict[str, Any]:
  """Runs some steps; returns the same figures as for a slice where known.

  Args:
    run: the run.
    steps: number of measured steps; two unmeasured ones come first.
    say: is called with progress messages.

  Raises:
    ValueError: the config does not fit the devices.
  """
  platform = jax.default_backend()
  config = analysis.resolve(run.config, platform)
  found = analysis.analyse(config)
  layout = devices.layout(config, jax.devices())
  program = program_lib.Program(config, layout)
  device = layout.mesh.devices.flat[0]
  plan = one_run.Plan(run, config, None, found)
  result = as_json.figures(plan) | {
    'topology': f'{platform}:{layout.mesh.size}',
    'device': device.device_kind,
    'devices': layout.mesh.size,
    'backend': platform,
    'runtime': ' '.join(device.client.platform_version.split()),
  }
  say(f'Compiling {run.name} for {layout.mesh.size} x {device.device_kind}.')
  start = time.monotonic()
  compiled = seconds = None
  needed = compiling.held(program)
  try:
    # Compiling can run out of memory, too: it may try kernels on the device.
    compiled = program.train_step.lower(
      program.abstract_state, program.abstract_batch
    ).compile()
    result['compile_seconds'] = round(time.monotonic() - start, 1)
    needed, _ = compiling.read_memory(compiled.memory_analysis(), needed)
    say(f'Measuring {steps} steps.')
    seconds = _measure(program, compiled, steps)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    if compiled is None:
      stated = compiling.parse_out_of_memory(str(error)) or 0
      needed = dataclasses.replace(needed, temporaries=stated)
  result |= _memory(needed, device, compiled is not None, seconds)
  if seconds:
    result |= _speed(found, seconds, layout.mesh.size, device)
  result['assumptions'] = [
    'Measured: nothing is estimated or corrected. The images are random and'
    ' made on the device, so the time does not include waiting for data.',
  ]
  return result


def _measure(program, compiled, steps: int) -> float:
  """Returns the median seconds of a step."""
  state = program.init_state()
  batch = _batch(program)
  for _ in range(_WARM_UP_STEPS):
    state, metrics = compiled(state, batch)
  jax.block_until_ready(metrics)
  rounds = []
  # Wait only once in several steps: as in training, the host runs ahead.
  each = max(1, steps // _ROUNDS)
  for _ in range(max(1, steps // each)):
    start = time.perf_counter()
    for _ in range(each):
      state, metrics = compiled(state, batch)
    jax.block_until_ready(metrics)
    rounds.append((time.perf_counter() - start) / each)
  return statistics.median(rounds)


def _batch(program: program_lib.Program) -> dict[str, jax.Array]:
  """Returns a batch of random images and labels."""
  shapes = program.abstract_batch
  classes = program.config.num_classes

  def make():
    key = jax.random.key(0)
    made = {}
    for name, x in shapes.items():
      if name == 'image':
        made[name] = jax.random.bits(key, x.shape, x.dtype)
      elif name == 'label':
        made[name] = jax.random.randint(key, x.shape, 0, classes, x.dtype)
      else:
        made[name] = jnp.full(x.shape, name == 'mask', x.dtype)
    return made

  return jax.jit(
    make, out_shardings={name: x.sharding for name, x in shapes.items()}
  )()


def _memory(
  needed: compiling.Memory, device, compiled: bool, seconds: float | None
) -> dict[str, Any]:
  """Returns the step's memory; measured if it ran and the backend counts it.

  Args:
    needed: the compiler's figures, as far as known.
    device: one of the devices.
    compiled: whether the step compiled.
    seconds: measured time of a step; None if the memory ran out.
  """
  stats = device.memory_stats() or {}
  # If the memory ran out, the peak does not tell how much the step needs.
  peak = stats.get('peak_bytes_in_use') if seconds else None
  limit = stats.get('bytes_limit')
  source = 'compiler' if compiled else 'lower bound'
  return {
    'hbm_gib': (peak or needed.total) / compiling.GIB,
    'hbm_source': 'measured' if peak else source,
    'hbm': {
      name: getattr(needed, name) / compiling.GIB for name in as_json.MEMORY
    },
    'hbm_usable_gib': limit / compiling.GIB if limit else None,
    'fits': seconds is not None,
  }


def _speed(found, seconds: float, count: int, device) -> dict[str, Any]:
  peak = peaks.of_device_kind(device.device_kind)
  days = seconds * found.total_steps / 86_400
  return {
    'step_ms': 1e3 * seconds,
    # A measured time needs no correction.
    'step_ms_corrected': 1e3 * seconds,
    'images_per_sec': found.batch_size / seconds,
    # On CPUs, JAX's one device is all cores of the machine.
    'images_per_sec_per_core': found.batch_size / seconds / count,
    'mfu': found.step_flops / seconds / (peak * count) if peak else None,
    'wall_days': days,
    'device_days': days * count,
  }
