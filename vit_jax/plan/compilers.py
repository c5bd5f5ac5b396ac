"""Compiles the training step, and reads what the compiler says of it."""

import contextlib
import ctypes
import dataclasses
import gc
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from vit_jax import sharding
from vit_jax.plan import analysis, devices, hlo
from vit_jax.plan import estimate as estimate_lib
from vit_jax.training import program as program_lib

GIB = 2**30
# Characters shown of the compiler's errors, which may hold whole programs.
_LONGEST = 400
_OUT_OF_MEMORY = re.compile(
  r'(?:HLO temporaries \(|Used )([\d.]+)([KMGT]?)B?'
  r'(?:\)| of [\d.]+[KMGT]?B? hbm)'
)


def named(figures: Mapping[str, Any]) -> str:
  """Names the compiler of a plan, such as `libtpu 0.0.50, jax 0.12.0`.

  Args:
    figures: see `figures`. Files from earlier versions do not name it.

  Returns:
    The name; '' if nothing was compiled or the compiler is not named.
  """
  if figures.get('libtpu'):
    return f'libtpu {figures["libtpu"]}, jax {figures["jax"]}'
  if figures.get('gpu_compiler'):
    return f'{figures["gpu_compiler"]}, jax {figures["jax"]}'
  return ''


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of main memory (HBM) on one device while a step runs.

  Attributes:
    parameters: this device's part of the model's parameters, and a teacher's.
    optimizer: the optimizer's state.
    average: the moving average of the parameters.
    batch: the images and labels of this device.
    padding: extra bytes of these four, since rows are padded to whole tiles.
    temporaries: the peak of activations, gradients and working space.
    outputs: results that do not reuse an argument's memory.
    program: the instructions.
  """

  parameters: int = 0
  optimizer: int = 0
  average: int = 0
  batch: int = 0
  padding: int = 0
  temporaries: int = 0
  outputs: int = 0
  program: int = 0

  @property
  def total(self) -> int:
    return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Compiled:
  """The compiler's result for a step.

  Attributes:
    memory: the memory of the fullest device; a lower bound if the compiler was
      not asked.
    usable: bytes of HBM that the compiler gives a program.
    estimate: the time of a step; None if the compiler failed or was not asked.
    seconds: the time that compiling took; None if the compiler was not asked.
    error: why the compiler failed, if not for lack of memory; `memory` is then
      only what was known before. '' if there was no such failure.
  """

  memory: Memory
  usable: int
  estimate: estimate_lib.Estimate | None = None
  seconds: float | None = None
  error: str = ''

  @property
  def fits(self) -> bool:
    return self.estimate is not None and self.memory.total <= self.usable


def build(
  config: ml_collections.ConfigDict, target: devices.Target
) -> program_lib.Program:
  """Builds the program of a complete config for a slice.

  Raises:
    ValueError: the config does not fit the slice's devices.
  """
  devices.check(config, target)
  layout = sharding.build(**config.mesh, devices=devices.compile_only(target))
  return program_lib.Program(config, layout)


def held(program: program_lib.Program) -> Memory:
  """Returns the exact memory of state and batch, known before compiling."""
  state = program.abstract_state
  return Memory(
    parameters=analysis.bytes_held((state.params, program.teacher)),
    optimizer=analysis.bytes_held(state.opt_state),
    average=analysis.bytes_held(state.ema_params),
    batch=analysis.bytes_held(program.abstract_batch),
  )


def compile_step(
  config: ml_collections.ConfigDict, target: devices.Target
) -> Compiled:
  """Compiles the step that training runs, with its shardings.

  Args:
    config: the complete config.
    target: the slice.

  Raises:
    ValueError: the config does not fit the slice's number of devices, or there
      is no compiler for them.
  """
  program, usable = build(config, target), target.chip.hbm_usable_bytes
  known, start = held(program), time.monotonic()
  lowered = program.train_step.lower(*program.arguments)
  try:
    compiled = lowered.compile(target.options)
  except jax.errors.JaxRuntimeError as error:
    needed = parse_out_of_memory(str(error))
    return Compiled(
      dataclasses.replace(known, temporaries=needed or 0),
      usable,
      seconds=time.monotonic() - start,
      error='' if needed else one_line(error),
    )
  finally:
    give_memory_back()
  memory = read_memory(compiled.memory_analysis(), known)
  estimate = estimate_lib.estimate(hlo.parse(compiled.as_text()), target.chip)
  seconds = time.monotonic() - start
  return Compiled(memory, usable, estimate, seconds)


def give_memory_back() -> None:
  """Returns the memory that the compiler freed to the system.

  The C library keeps freed pieces, gibibytes after each compilation: five large
  models in a row held 21 GiB. With this function, a process that compiled a
  small model holds 1.0 GiB instead of 2.0 GiB.
  """
  gc.collect()
  if sys.platform == 'linux':
    # Only glibc has `malloc_trim`.
    with contextlib.suppress(OSError, AttributeError):
      ctypes.CDLL('libc.so.6').malloc_trim(0)


def one_line(error: Exception) -> str:
  """Returns an error's message in one line, short enough for a report."""
  text = ' '.join(str(error).split())
  return text if len(text) <= _LONGEST else text[:_LONGEST] + ' ...'


def read_memory(stats, known: Memory) -> Memory:
  """Splits the compiler's memory figures into parts.

  Args:
    stats: the result of `compiled.memory_analysis()`.
    known: see `held`.

  Returns:
    The memory. Its total is the compiler's arguments + temporaries + outputs -
    outputs that share arguments' memory + program.
  """
  arguments = stats.argument_size_in_bytes
  outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
  temporaries = stats.temp_size_in_bytes
  if not temporaries:
    # Seen where two cores of a chip are one device (libtpu 0.0.42, v4). What is
    # allocated for the most that is alive at a time may be slightly larger.
    alive = stats.peak_memory_in_bytes - arguments - outputs
    temporaries = max(alive, 0)
  return dataclasses.replace(
    known,
    padding=arguments - known.total,
    temporaries=temporaries,
    outputs=outputs,
    program=stats.generated_code_size_in_bytes,
  )


def parse_out_of_memory(message: str) -> int | None:
  """Returns the bytes that the compiler's error says the program needs.

  None if it is a different error.
  """
  found = _OUT_OF_MEMORY.search(message)
  if not found or 'RESOURCE_EXHAUSTED' not in message:
    return None
  return round(float(found[1]) * 2 ** (10 * ' KMGT'.index(found[2] or ' ')))
