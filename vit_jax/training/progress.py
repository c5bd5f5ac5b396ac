"""Metrics, speed and remaining time of the steps between two log lines."""

import math
import time
from collections.abc import Mapping

import jax
import numpy as np
from absl import logging

from vit_jax.runtime import printable


class Interval:
  """The metrics of the steps since the last log line, still on the devices.

  Blocks the host when it runs more than two steps ahead of the devices, so that
  batches don't pile up in device memory.
  """

  _AHEAD = 2

  def __init__(self, start_step: int):
    self.start_step = start_step
    self._values: list[dict[str, jax.Array]] = []

  def add(self, values: dict[str, jax.Array]) -> None:
    self._values.append(values)
    if len(self._values) > self._AHEAD:
      # This waits without a transfer, which would cost time on an accelerator.
      jax.block_until_ready(self._values[-1 - self._AHEAD])

  def fetch(self) -> list[dict[str, np.ndarray]]:
    """Returns each step's metrics; waits until the steps are done."""
    self._values = jax.device_get(self._values)
    return self._values

  def mean(self) -> dict[str, float]:
    """Returns mean loss and accuracy, sums of counts, and other last values.

    Skipped steps enter only the counts. If all were skipped, the means are NaN.
    """
    values = self.fetch()
    counted = [v for v in values if not v['skipped']]
    last = counted[-1] if counted else values[-1]
    result = {f'train/{k}': float(v) for k, v in last.items()}
    for name in ('loss', 'accuracy'):
      numbers = [float(v[name]) for v in counted]
      mean = sum(numbers) / len(numbers) if numbers else math.nan
      result[f'train/{name}'] = mean
    for name in ('unreadable', 'truncated', 'skipped'):
      if name in last:
        result[f'train/{name}'] = sum(float(v[name]) for v in values)
    return result


class Progress:
  """Speed, input wait and time left between log lines."""

  def __init__(self, total_steps: int, batch_size: int):
    self._total_steps = total_steps
    self._batch_size = batch_size
    # Step, time and seconds by category: of the first step, of the last line.
    self._start = self._last = None

  def start(self, step: int, seconds: Mapping[str, float]) -> None:
    """Starts the clock, after the first step, which includes compilation.

    Args:
      step: the step that is done.
      seconds: see `goodput.Goodput.seconds`.
    """
    self._start = self._last = (step, time.monotonic(), seconds)

  def measure(
    self, step: int, seconds: Mapping[str, float]
  ) -> dict[str, float]:
    """Measures the speed since the last call, and estimates the time left.

    Args:
      step: the step that is done.
      seconds: see `goodput.Goodput.seconds`. Only steps and input count for the
        speed, not evaluations and saves.

    Returns:
      `images_per_sec`, `input_wait` (the share of time, 0..1) and `eta_sec`; {}
      if no step has passed since the last call or `start`.
    """
    last_step, _, before = self._last
    if step == last_step:
      return {}
    now = time.monotonic()
    waited = seconds['input'] - before['input']
    trained = max(seconds['steps'] - before['steps'] + waited, 1e-9)
    # The pace is that of the whole launch, evaluations and saves included.
    start_step, start_time, _ = self._start
    pace = (now - start_time) / (step - start_step)
    self._last = (step, now, seconds)
    return {
      'images_per_sec': (step - last_step) * self._batch_size / trained,
      'input_wait': waited / trained,
      'eta_sec': pace * (self._total_steps - step),
    }


def log_line(step: int, total_steps: int, values: Mapping[str, float]) -> None:
  """Logs one line for one interval of training."""
  more = ''
  if 'images_per_sec' in values:
    more = (
      f'  {values["images_per_sec"]:,.0f} img/s'
      f'  input {100 * values["input_wait"]:2.0f}%'
      f'  ETA {printable.duration(values["eta_sec"])}'
    )
  for name in ('unreadable', 'truncated', 'skipped'):
    if count := values.get(f'train/{name}'):
      more += f'  {name} {count:.0f}'
  logging.info(
    'step %*d/%d  loss %.4f  acc %5.1f%%  lr %.2e%s',
    len(str(total_steps)),
    step,
    total_steps,
    values['train/loss'],
    100 * values['train/accuracy'],
    values['train/learning_rate'],
    more,
  )
