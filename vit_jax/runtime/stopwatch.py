"""Measures how long computations take, and compares them.

Settings that are compared take turns, A B A B ..., so that other work on the
machine slows all of them equally. Paired ratios are taken within a round.
"""

import statistics as statistics_lib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from absl import logging

from vit_jax.runtime import printable

Sample = TypeVar('Sample')
# Seconds between two lines of progress.
_TELL_EVERY = 5.0
_FEWEST_CALLS = 3


def seconds_of(function: Callable[[], Any]) -> float:
  """Returns the seconds until a function's results are computed."""
  start = time.perf_counter()
  jax.block_until_ready(function())
  return time.perf_counter() - start


def median_seconds(
  function: Callable[[], Any],
  *,
  warm_up: int,
  calls: int,
  max_seconds: float,
) -> float:
  """Returns the median seconds of a call.

  Args:
    function: the function to time, see `seconds_of`.
    warm_up: untimed calls that come first.
    calls: most timed calls.
    max_seconds: seconds after which no further call is made, once three are
      timed. The untimed calls also end after as many seconds.
  """
  warming = 0.0
  for _ in range(warm_up):
    warming += seconds_of(function)
    if warming > max_seconds:
      break
  took = []
  while len(took) < calls:
    took.append(seconds_of(function))
    if len(took) >= _FEWEST_CALLS and sum(took) > max_seconds:
      break
  return statistics_lib.median(took)


def take_turns(
  turns: Mapping[str, Callable[[], Sample]], rounds: int
) -> dict[str, list[Sample]]:
  """Runs all turns alternately, and logs the remaining time now and then.

  Args:
    turns: name -> function that does one turn and returns its measurement.
    rounds: the number of turns for each name.

  Returns:
    Name -> the results of its turns, in order.
  """
  samples = {name: [] for name in turns}
  start = told = time.monotonic()
  for done in range(1, rounds + 1):
    for name, turn in turns.items():
      samples[name].append(turn())
    now = time.monotonic()
    if now - told >= _TELL_EVERY and done < rounds:
      left = printable.duration((now - start) / done * (rounds - done))
      logging.info('round %d of %d, %s left', done, rounds, left)
      told = now
  return samples


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


def ratios(samples: Mapping[str, Sequence[float]]) -> dict[str, dict]:
  """Compares all settings with the first one.

  Args:
    samples: name -> one measurement per round, in order.

  Returns:
    Name -> `ratio`, its median over the first setting's; `paired_ratio`, the
    median over the rounds of the ratio within a round, which noise that lasts
    longer than a round does not change; and `paired_ratio_quartiles`.
  """
  first = next(iter(samples.values()))
  results = {}
  for name, values in samples.items():
    lower, middle, upper = np.quantile(
      np.divide(values, first), [0.25, 0.5, 0.75]
    ).tolist()
    results[name] = {
      'ratio': float(np.median(values) / np.median(first)),
      'paired_ratio': middle,
      'paired_ratio_quartiles': [lower, upper],
    }
  return results
