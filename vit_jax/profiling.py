"""A trace of chosen steps, for TensorBoard's or Perfetto's viewer."""

import jax
from absl import logging
from etils import epath


class Profiler:
  """Traces the steps `start_step` + 1 ... `start_step` + `steps`."""

  def __init__(self, workdir: epath.Path, *, start_step: int, steps: int):
    self._directory = workdir / 'profile'
    self._first = start_step + 1
    self._last = start_step + steps
    self._running = False

  def before(self, step: int) -> None:
    if self._first <= step <= self._last and not self._running:
      jax.profiler.start_trace(str(self._directory))
      self._running = True

  def after(self, step: int) -> None:
    if self._running and step >= self._last:
      self._stop()

  def _stop(self) -> None:
    # Steps are dispatched ahead; wait for the devices to have run them.
    jax.effects_barrier()
    jax.profiler.stop_trace()
    self._running = False
    logging.info('Profiler trace written to %s.', self._directory)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._running:
      self._stop()
