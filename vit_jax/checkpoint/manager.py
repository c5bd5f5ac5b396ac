"""Saves one run's checkpoints, and decides which of them to keep."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import flax.serialization
from absl import logging
from etils import epath

from vit_jax.checkpoint import folders, record, restoring, saving
from vit_jax.runtime import errors
from vit_jax.workdir import files


def is_better(metric: str, value: float, than: float) -> bool:
  """Whether a metric improved: lower is better if its name ends in `loss`."""
  return value < than if metric.endswith('loss') else value > than


class Checkpoints:
  """The checkpoints of one run. All processes must make the same calls."""

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    keep: int,
    keep_every: int,
    best: str = '',
    timeout: float = 1800.0,
  ):
    """Opens (and creates) the run's checkpoint folder.

    Removes incomplete checkpoints that a killed run left.

    Args:
      workdir: the run's directory.
      keep: how many of the newest checkpoints to keep.
      keep_every: multiples of this many steps are kept for good; 0 keeps none.
      best: a metric, such as `test/accuracy` or `test/loss`, whose best step is
        kept, too (see `is_better`; the first of equal steps); '' keeps none.
      timeout: the longest time to wait for a save to end, in seconds.

    Raises:
      SaveError: the folder cannot be created.
    """
    self.directory = files.absolute(workdir) / folders.FOLDER
    self._keep = keep
    self._keep_every = keep_every
    self._best = best
    self._values: dict[int, float] = {}
    self._saver = saving.Saver(self.directory, self._kept, timeout)
    if best:
      for path in folders.complete_steps(self.directory):
        self.note(int(path.name), record.read_metrics(path))

  def note(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Remembers a step's value of the metric `best`, if `metrics` has it.

    Args:
      step: a step, which may or may not be saved already.
      metrics: the metrics of that step, numbers by name. A value that is not
        finite counts as missing.
    """
    value = metrics.get(self._best)
    if value is None:
      return
    self._values.pop(step, None)
    if math.isfinite(value):
      self._values[step] = float(value)

  def _kept(self, steps: Sequence[int]) -> set[int]:
    kept = set(steps[-self._keep :])
    if self._keep_every:
      kept |= {step for step in steps if step % self._keep_every == 0}
    if (best := self._best_of(steps)) is not None:
      kept.add(best)
    return kept

  def _best_of(self, steps: Sequence[int]) -> int | None:
    best = None
    for step in sorted(self._values.keys() & set(steps)):
      if best is None or is_better(
        self._best, self._values[step], self._values[best]
      ):
        best = step
    return best

  @property
  def latest_step(self) -> int | None:
    """The newest step that was completely saved; None if there is none.

    Leaves out steps known to be damaged. Does not wait for the current save.
    """
    return self._saver.latest_step

  def save(
    self,
    step: int,
    state: Any,
    metrics: Mapping[str, Any] | None = None,
  ) -> None:
    """Starts saving; returns when the state is copied off the devices.

    First waits for the previous save to end. A step that is complete already is
    not saved again, unless `restore_newest` found it damaged: then it is
    deleted and saved anew.

    Args:
      step: the step of the state.
      state: a tree of arrays.
      metrics: the metrics of this step, numbers by name; `note` can give the
        value of `best` later. Without a finite value the step cannot be best.

    Raises:
      SaveError: the previous save failed or did not end within the time limit,
        or this one could not start. Names the step, the reason and the last
        complete step.
    """
    self._saver.wait()
    tree = flax.serialization.to_state_dict(state)
    saved_as = record.build(tree, metrics)
    self.note(step, metrics or {})
    self._saver.save(step, tree, saved_as)

  def check_space(self, state: Any) -> None:
    """Raises SaveError unless the disk has space for one more state.

    Args:
      state: arrays, or their shapes and dtypes.
    """
    self._saver.check_space(state)

  def check(self) -> None:
    """Raises SaveError if the last save failed; does not wait."""
    self._saver.check()

  def wait(self) -> None:
    """Waits for the current save; raises SaveError like `save`."""
    self._saver.wait()

  def restore(self, step: int, abstract_state: Any) -> Any:
    """Restores one step's state; see `restoring.restore`."""
    return restoring.restore(self.directory / str(step), abstract_state)

  def close(self) -> None:
    """Waits for the last save and releases the manager.

    Raises:
      SaveError: the last save failed, or did not end within the time limit.
        While another exception is handled, this one is only logged, so that it
        does not hide the other.
    """
    handled = sys.exception()
    try:
      self._saver.close()
    except errors.SaveError as error:
      if handled is None:
        raise
      logging.error('%s', error)
