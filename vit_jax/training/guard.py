"""Stops a run, or skips a step, when the loss or gradient is not finite."""

import math
from collections.abc import Callable, Mapping, Sequence

from etils import epath

from vit_jax.runtime import errors
from vit_jax.training import step as step_lib

POLICIES = {
  'stop': 'the run ends; no checkpoint is written after such a step',
  'skip': 'the step changes nothing; the next batch may do better',
}


class Guard:
  """Checks the metrics of every step, which are the same in all processes."""

  def __init__(
    self, directory: epath.Path, *, nonfinite: str, max_skipped: int
  ):
    """Checks the policy.

    Args:
      directory: the run's checkpoints, named in the error message.
      nonfinite: one of POLICIES.
      max_skipped: with 'skip', how many steps in a row may be skipped; one
        more ends the run.

    Raises:
      ValueError: the policy is unknown.
    """
    if nonfinite not in POLICIES:
      raise ValueError(
        f'guard.nonfinite={nonfinite!r} is unknown; choose one of'
        f' {list(POLICIES)}.'
      )
    self.skips = nonfinite == 'skip'
    self._directory = directory
    self._max_skipped = max_skipped if self.skips else 0
    self._in_a_row = 0

  def check(
    self,
    start_step: int,
    values: Sequence[Mapping[str, float]],
    last_checkpoint: Callable[[], int | None],
  ) -> None:
    """Checks the steps after `start_step`.

    Args:
      start_step: the step before the first one in `values`.
      values: the metrics of each step, see `step.make_train_step`.
      last_checkpoint: returns the step of the run's newest checkpoint; only
        called for the error message.

    Raises:
      NonFiniteError: a step is not finite and may not be skipped.
    """
    for step, metrics in enumerate(values, start=start_step + 1):
      bad = {
        name: float(metrics[name])
        for name in step_lib.GUARDED
        if not math.isfinite(metrics[name])
      }
      self._in_a_row = self._in_a_row + 1 if bad else 0
      if self._in_a_row <= self._max_skipped:
        continue
      saved = last_checkpoint()
      kept = (
        f'the last good checkpoint is {self._directory}/{saved}'
        if saved
        else 'no checkpoint had been saved yet'
      )
      row = f', number {self._in_a_row} in a row' if self.skips else ''
      raise errors.NonFiniteError(
        f'Not finite: {bad} at step {step}{row} (found in steps'
        f' {start_step + 1} to {start_step + len(values)}). Training stopped;'
        f' {kept}. A lower schedule.peak, a longer schedule.warmup_steps or'
        ' optimizer.clip_norm=1 are the usual remedies.'
      )
