"""Records a profile of chosen steps, for TensorBoard's or Perfetto's viewer."""

from typing import Any

import jax
from absl import logging
from etils import epath


class Profiler:
  """Traces the steps `start_step` + 1 ... `start_step` + `steps`.

  The host dispatches steps ahead of the devices. It waits for the devices
  before the first traced step and after the last one, so that the trace
  contains exactly these steps.
  """

  def __init__(self, workdir: epath.Path, *, start_step: int, steps: int):
    self._directory = workdir / 'profile'
    self._first = start_step + 1
    self._last = start_step + steps
    self._running = False

  def before(self, step: int, state: Any) -> None:
    """Call this before each step, with the step's input arrays."""
    if self._first <= step <= self._last and not self._running:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._directory))
      self._running = True

  def after(self, step: int, state: Any) -> None:
    """Call this after each step, with the step's output arrays."""
    if self._running and step >= self._last:
      jax.block_until_ready(state)
      self._stop()

  def _stop(self) -> None:
    jax.profiler.stop_trace()
    self._running = False
    logging.info('Profiler trace written to %s.', self._directory)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._running:
      self._stop()
