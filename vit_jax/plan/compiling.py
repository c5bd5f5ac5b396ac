"""Compiles the training step for devices; reads its memory and time."""

import contextlib
import ctypes
import dataclasses
import gc
import re
import sys
import time

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax.plan import analysis, devices, hlo
from vit_jax.plan import estimate as estimate_lib
from vit_jax.training import program as program_lib

GIB = 2**30
# The compiled step has these only as constants of the schedule, if at all.
_LENGTH_OF_RUN = ('epochs', 'total_steps')
# Characters shown of the compiler's errors, which may hold whole programs.
_LONGEST = 400
_UNITS = {'': 1, 'B': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of main memory (HBM) on one device while a step runs.

  Attributes:
    parameters: this device's part of the model's parameters.
    optimizer: the optimizer's state.
    average: the moving average of the parameters.
    batch: the images and labels of this device.
    padding: extra bytes of these four, since rows are padded to whole tiles.
    temporaries: the peak of activations, gradients and working space.
    outputs: results that do not reuse an argument's memory.
    program: the instructions.
  """

  parameters: int
  optimizer: int
  average: int
  batch: int
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
    memory: the memory of the fullest device.
    usable: bytes of HBM that the compiler gives a program.
    estimate: the time of a step; None if the compiler failed.
    seconds: the time that compiling took.
    assumptions: sentences for the reader.
    error: why the compiler failed, if not for lack of memory; `memory` is then
      only what was known before. '' if there was no such failure.
  """

  memory: Memory
  usable: int
  estimate: estimate_lib.Estimate | None
  seconds: float
  assumptions: tuple[str, ...] = ()
  error: str = ''

  @property
  def fits(self) -> bool:
    return self.estimate is not None and self.memory.total <= self.usable


# (slice, config) -> result.
_COMPILED: dict[tuple[str, str], Compiled] = {}


def build(
  config: ml_collections.ConfigDict, target: devices.AnyTarget
) -> program_lib.Program:
  """Builds the program of a complete config for a slice.

  Raises:
    ValueError: the config does not fit the slice's devices.
  """
  devices.check(config, target)
  layout = devices.layout(config, target.open())
  return program_lib.Program(config, layout)


def held(program: program_lib.Program) -> Memory:
  """Returns the exact memory of state and batch, known before compiling."""
  state = program.abstract_state
  return Memory(
    parameters=analysis.bytes_held(state.params),
    optimizer=analysis.bytes_held(state.opt_state),
    average=analysis.bytes_held(state.ema_params),
    batch=analysis.bytes_held(program.abstract_batch),
  )


def compile_step(
  config: ml_collections.ConfigDict, target: devices.AnyTarget
) -> Compiled:
  """Compiles the step that training runs, with its shardings.

  A process compiles runs that differ only in their length, as some of Table 6
  do, once.

  Args:
    config: the complete config.
    target: the slice.

  Raises:
    ValueError: the config does not fit the slice's number of devices, or there
      is no compiler for them.
  """
  same = config_lib.flatten(config.to_dict())
  for name in _LENGTH_OF_RUN:
    del same[name]
  key = (str(target), repr(sorted(same.items())))
  if key not in _COMPILED:
    _COMPILED[key] = _compile(build(config, target), target)
  return _COMPILED[key]


def _compile(
  program: program_lib.Program, target: devices.AnyTarget
) -> Compiled:
  known, usable = held(program), target.chip.hbm_usable_bytes
  start = time.monotonic()
  lowered = program.train_step.lower(
    program.abstract_state, program.abstract_batch
  )
  try:
    compiled = lowered.compile(target.options)
  except jax.errors.JaxRuntimeError as error:
    needed = parse_out_of_memory(str(error))
    return Compiled(
      dataclasses.replace(known, temporaries=needed or 0),
      usable,
      None,
      time.monotonic() - start,
      error='' if needed else one_line(error),
    )
  finally:
    give_memory_back()
  memory, assumptions = read_memory(compiled.memory_analysis(), known)
  module = hlo.parse(compiled.as_text())
  return Compiled(
    memory,
    usable,
    target.estimate(module),
    time.monotonic() - start,
    assumptions,
  )


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


def read_memory(stats, known: Memory) -> tuple[Memory, tuple[str, ...]]:
  """Splits the compiler's memory figures into parts.

  Args:
    stats: the result of `compiled.memory_analysis()`.
    known: see `held`.

  Returns:
    The memory and assumptions. The memory's total is the compiler's arguments
    + temporaries + outputs - outputs that share arguments' memory + program.
  """
  arguments = stats.argument_size_in_bytes
  outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
  temporaries, assumptions = stats.temp_size_in_bytes, ()
  if not temporaries and stats.peak_memory_in_bytes > arguments + outputs:
    # Seen where two cores of a chip are one device (libtpu 0.0.42, v4).
    temporaries = stats.peak_memory_in_bytes - arguments - outputs
    assumptions = (
      'Temporaries are the most that is alive at a time. The compiler does not'
      ' state the memory that it allocates for them, which may be slightly'
      ' larger.',
    )
  return (
    dataclasses.replace(
      known,
      padding=arguments - known.total,
      temporaries=temporaries,
      outputs=outputs,
      program=stats.generated_code_size_in_bytes,
    ),
    assumptions,
  )


def parse_out_of_memory(message: str) -> int | None:
  """Returns the bytes that an out-of-memory error says the program needs.

  Args:
    message: the compiler's error message.

  Returns:
    The bytes; None if it is a different error.
  """
  if 'RESOURCE_EXHAUSTED' not in message:
    return None
  for pattern in (
    r'HLO temporaries \(([\d.]+)([KMGT]?)B?\)',
    r'Used ([\d.]+)([KMGT]?)B? of [\d.]+[KMGT]?B? hbm',
  ):
    found = re.search(pattern, message)
    if found:
      return round(float(found[1]) * _UNITS[found[2]])
  return None
