"""Interleaved measurements, their statistics and their environment.

Settings take turns, A B A B ..., so that other work on the machine slows all of
them equally. Paired ratios are taken within a round.
"""

import datetime
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from vit_jax.runtime import printable

Sample = TypeVar('Sample')
Clock = Callable[[], float]

# Environment variables that can change the measurements.
_VARIABLES = (
  'JAX_PLATFORMS',
  'JAX_DEFAULT_MATMUL_PRECISION',
  'LIBTPU_INIT_ARGS',
  'OMP_NUM_THREADS',
  'XLA_FLAGS',
  'XLA_PYTHON_CLIENT_MEM_FRACTION',
)
# Seconds between two lines of progress.
_SAY_EVERY = 5.0


def say(text: str) -> None:
  """Prints to stderr, because stdout is for the JSON."""
  print(text, file=sys.stderr, flush=True)


def interleave(
  turns: Mapping[str, Callable[[], Sample]],
  rounds: int,
  *,
  clock: Clock = time.monotonic,
) -> dict[str, list[Sample]]:
  """Runs all turns alternately, and prints the remaining time now and then.

  Args:
    turns: name -> function that does one turn and returns its measurement.
    rounds: the number of turns for each name.
    clock: returns seconds, for the remaining time.

  Returns:
    Name -> the results of its turns, in order.
  """
  samples = {name: [] for name in turns}
  start = said = clock()
  for index in range(1, rounds + 1):
    for name, turn in turns.items():
      samples[name].append(turn())
    now = clock()
    if now - said >= _SAY_EVERY and index < rounds:
      left = (now - start) / index * (rounds - index)
      say(f'round {index} of {rounds}, ETA {printable.duration(left)}')
      said = now
  return samples


def seconds_of(
  function: Callable[[], Any], *, clock: Clock = time.perf_counter
) -> float:
  """Returns the seconds until a function's results are computed."""
  before = clock()
  jax.block_until_ready(function())
  return clock() - before


def statistics(values: Sequence[float]) -> dict[str, Any]:
  """Returns median, extremes and spread of some measurements.

  Returns:
    `median`, `min`, `max`, `count`, `values`, and `spread`: the interquartile
    range over the median.
  """
  lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
  return {
    'median': median,
    'min': float(min(values)),
    'max': float(max(values)),
    'spread': (upper - lower) / median if median else 0.0,
    'count': len(values),
    'values': [float(value) for value in values],
  }


def compare(samples: Mapping[str, Sequence[float]]) -> dict[str, dict]:
  """Compares all settings with the first one.

  Args:
    samples: name -> one measurement per round, in order.

  Returns:
    Name -> its `statistics`; `ratio`, its median over the first setting's;
    `paired_ratio`, the median over the rounds of the ratio within a round,
    which noise that lasts longer than a round does not change; and
    `paired_ratio_quartiles`.
  """
  first = next(iter(samples.values()))
  median = float(np.median(first))
  results = {}
  for name, values in samples.items():
    pairs = np.divide(values, first)
    lower, middle, upper = np.quantile(pairs, [0.25, 0.5, 0.75]).tolist()
    results[name] = statistics(values) | {
      'ratio': float(np.median(values)) / median,
      'paired_ratio': middle,
      'paired_ratio_quartiles': [lower, upper],
    }
  return results


def environment(devices: bool = True) -> dict[str, Any]:
  """Returns versions, commit, load, variables and devices for the results.

  Args:
    devices: whether to ask JAX for its devices, which then belong to this
      process.
  """
  found = {
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'commit': _commit(),
    'python': platform.python_version(),
    'jax': jax.__version__,
    'cpus': os.cpu_count(),
    'load': os.getloadavg()[0],
    'variables': {k: os.environ[k] for k in _VARIABLES if k in os.environ},
  }
  if devices:
    found |= {
      'platform': jax.default_backend(),
      'device_kind': jax.devices()[0].device_kind,
      'devices': jax.device_count(),
      'processes': jax.process_count(),
    }
  return found


def _commit() -> str | None:
  """Returns the commit of this code, with a `+` if files differ from it."""
  folder = pathlib.Path(__file__).parent
  try:
    commit, changes = (
      subprocess.run(
        ['git', '-C', str(folder), *command],
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
      ).stdout.strip()
      for command in (
        ['rev-parse', '--short', 'HEAD'],
        ['status', '--porcelain', '--untracked-files=no'],
      )
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return commit + ('+' if changes else '')
