"""A trace of chosen steps, for TensorBoard's or Perfetto's viewer."""

from typing import Any

import jax
from absl import logging
from etils import epath


class Profiler:
  """Traces the steps `start_step` + 1 ... `start_step` + `steps`.

  Steps are dispatched ahead. The devices finish what came before the first
  traced step, and all of the last one, so that the trace holds just these.
  """

  def __init__(self, workdir: epath.Path, *, start_step: int, steps: int):
    self._directory = workdir / 'profile'
    self._first = start_step + 1
    self._last = start_step + steps
    self._running = False

  def before(self, step: int, state: Any) -> None:
    """To be called before each step, with the arrays it starts from."""
    if self._first <= step <= self._last and not self._running:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._directory))
      self._running = True

  def after(self, step: int, state: Any) -> None:
    """To be called after each step, with the arrays it computes."""
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
