"""Interleaved measurements, their statistics, and where they were made.

What is compared takes turns, A B A B ..., so that whatever else the machine
does hurts all alike, and ratios are taken within a round.
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

from vit_jax.runtime import progress

Sample = TypeVar('Sample')
Clock = Callable[[], float]

# Variables that change what is measured.
_VARIABLES = (
  'JAX_PLATFORMS',
  'JAX_DEFAULT_MATMUL_PRECISION',
  'LIBTPU_INIT_ARGS',
  'OMP_NUM_THREADS',
  'XLA_FLAGS',
  'XLA_PYTHON_CLIENT_MEM_FRACTION',
)
# Seconds between two lines that say how far it is.
_SAY_EVERY = 5.0


def say(text: str) -> None:
  """Prints for people: stdout is for the JSON."""
  print(text, file=sys.stderr, flush=True)


def interleave(
  turns: Mapping[str, Callable[[], Sample]],
  rounds: int,
  *,
  clock: Clock = time.monotonic,
) -> dict[str, list[Sample]]:
  """Lets all take turns, and says now and then how long it will be.

  Args:
    turns: by name, what does one turn and returns what it measured.
    rounds: how many turns each gets.
    clock: seconds, for the time that is left.

  Returns:
    Name -> what its turns returned, in order.
  """
  samples = {name: [] for name in turns}
  start = said = clock()
  for index in range(1, rounds + 1):
    for name, turn in turns.items():
      samples[name].append(turn())
    now = clock()
    if now - said >= _SAY_EVERY and index < rounds:
      left = (now - start) / index * (rounds - index)
      say(f'round {index} of {rounds}, ETA {progress.duration(left)}')
      said = now
  return samples


def seconds_of(
  function: Callable[[], Any], *, clock: Clock = time.perf_counter
) -> float:
  """Seconds until all that a function returns is computed."""
  before = clock()
  jax.block_until_ready(function())
  return clock() - before


def statistics(values: Sequence[float]) -> dict[str, Any]:
  """Median, extremes and spread of some measurements.

  Returns:
    `median`, `min`, `max`, `count`, `values`, and `spread`: the distance of
    the quartiles over the median.
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
    samples: name -> measurements, as many for each, in the order of rounds.

  Returns:
    Name -> its `statistics`, and `ratio`: its median over the first one's;
    `paired_ratio`: the median over the rounds of the ratio within a round,
    which noise that lasts longer than a round does not touch; and
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
  """What a measurement depends on beside the program.

  Args:
    devices: whether to ask JAX for its devices, which takes hold of them.
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
  """The commit of this code, with a `+` if files differ from it."""
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
