"""Metrics, speed and remaining time of the steps between two log lines."""

import math
import time
from collections.abc import Mapping

import jax
import numpy as np
from absl import logging


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

  def __init__(self, start_step: int, total_steps: int, batch_size: int):
    self._total_steps = total_steps
    self._batch_size = batch_size
    self._start = (start_step, time.monotonic())
    self._last = self._start
    self._waited = 0.0
    self._paused = 0.0

  def wait(self, seconds: float) -> None:
    """Adds time that the loop waited for input."""
    self._waited += seconds

  def pause(self, seconds: float) -> None:
    """Leaves out time that was not training (evaluation, saving)."""
    self._paused += seconds

  def reset(self, step: int) -> None:
    """Restarts the clock, so that compilation doesn't spoil the ETA."""
    self._start = self._last = (step, time.monotonic())
    self._waited = self._paused = 0.0

  def measure(self, step: int) -> dict[str, float]:
    """Measures the speed since the last call, and estimates the time left.

    Returns:
      `images_per_sec`, `input_wait` (the share of time, 0..1) and `eta_sec`; {}
      if no step has passed since the last call or `reset`.
    """
    last_step, last_time = self._last
    if step == last_step:
      return {}
    now = time.monotonic()
    seconds = max(now - last_time - self._paused, 1e-9)
    steps = step - last_step
    result = {
      'images_per_sec': steps * self._batch_size / seconds,
      'input_wait': min(self._waited / seconds, 1.0),
    }
    # The pace is that of the whole launch, evaluations and saves included.
    start_step, start_time = self._start
    pace = (now - start_time) / (step - start_step)
    result['eta_sec'] = pace * (self._total_steps - step)
    self._last = (step, now)
    self._waited = self._paused = 0.0
    return result


class Limits:
  """Tells whether the input or the step limits the speed."""

  # The first step compiles. Of the next ones, the fastest counts.
  _TIMED = range(2, 6)

  def __init__(self, batch_size: int):
    """Begins.

    Args:
      batch_size: images of a step.
    """
    self._batch_size = batch_size
    self._steps = 0
    self._step_sec = math.inf

  def time(self, since: float, values: dict[str, jax.Array]) -> None:
    """Times one of the first steps, which this waits for; later ones go on.

    Args:
      since: `time.monotonic()` just before the step was dispatched.
      values: the step's metrics.
    """
    self._steps += 1
    if self._steps <= max(self._TIMED):
      jax.block_until_ready(values)
    if self._steps in self._TIMED:
      self._step_sec = min(self._step_sec, time.monotonic() - since)

  def log(self, input_images_per_sec: float) -> None:
    """Logs how fast the input and the step are by themselves.

    Args:
      input_images_per_sec: what the hosts' input makes, of all hosts together.
    """
    if math.isinf(self._step_sec):
      return  # Too few steps.
    step = self._batch_size / self._step_sec
    slower = 'input' if input_images_per_sec < step else 'step'
    logging.info(
      'By itself, the input makes about %s images/s, and the step takes %s: the'
      ' %s limits.',
      *(f'{input_images_per_sec:,.0f}', f'{step:,.0f}', slower),
    )


def duration(seconds: float) -> str:
  """`93784` -> `1d02:03:04`, `75` -> `1:15`."""
  seconds = round(seconds)
  days, rest = divmod(seconds, 86400)
  hours, rest = divmod(rest, 3600)
  minutes, seconds = divmod(rest, 60)
  if days:
    return f'{days}d{hours:02}:{minutes:02}:{seconds:02}'
  if hours:
    return f'{hours}:{minutes:02}:{seconds:02}'
  return f'{minutes}:{seconds:02}'


def log_line(step: int, total_steps: int, values: Mapping[str, float]) -> None:
  """Logs one line for one interval of training."""
  speed = ''
  if 'images_per_sec' in values:
    speed = (
      f'  {values["images_per_sec"]:,.0f} img/s'
      f'  input {100 * values["input_wait"]:2.0f}%'
      f'  ETA {duration(values["eta_sec"])}'
    )
  if values['train/unreadable']:
    speed += f'  unreadable {values["train/unreadable"]:.0f}'
  if values.get('train/truncated'):
    speed += f'  labels cut {values["train/truncated"]:.0f}'
  if values['train/skipped']:
    speed += f'  skipped {values["train/skipped"]:.0f}'
  logging.info(
    'step %*d/%d  loss %.4f  acc %5.1f%%  lr %.2e%s',
    len(str(total_steps)),
    step,
    total_steps,
    values['train/loss'],
    100 * values['train/accuracy'],
    values['train/learning_rate'],
    speed,
  )
