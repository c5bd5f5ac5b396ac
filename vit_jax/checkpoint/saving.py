"""Saves checkpoints in the background, and decides which of them to keep."""

import contextlib
import math
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import flax.serialization
import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax.checkpoint import folders, record
from vit_jax.runtime import distributed, errors
from vit_jax.workdir import buckets, files

# Bytes for the metadata. The arrays need at most their size: Orbax compresses
# them a little.
_BESIDE = 2**20


def is_better(metric: str, value: float, than: float) -> bool:
  """Whether a metric improved: lower is better if its name ends in `loss`."""
  return value < than if metric.endswith('loss') else value > than


class _Manager(ocp.CheckpointManager):
  """Orbax's manager, which leaves requests to stop to the run.

  It would ask JAX's preemption service by the number of the step, which JAX
  takes as the place where this process is. But the run asks by another number
  (see `runtime.preemption`), so a SIGTERM during a save could be lost. Where
  the two numbers agree, the save would fail, because Orbax then subtracts a
  time with a time zone from one without.
  """

  def reached_preemption(self, step: int) -> bool:
    return False


class Checkpoints:
  """The checkpoints in one folder of a run; makes one save at a time.

  All processes must make the same calls.

  Attributes:
    directory: the parent of the steps' directories.
    latest_step: the newest step that was completely saved; None if there is
      none.
  """

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    keep: int,
    keep_every: int = 0,
    best: str = '',
    timeout: float = 1800.0,
    folder: str = folders.FOLDER,
  ):
    """Creates the folder.

    Args:
      workdir: the run's directory.
      keep: how many of the newest checkpoints to keep.
      keep_every: multiples of this many steps are kept for good; 0 keeps none.
      best: a metric, such as `test/accuracy` or `test/loss`, whose best step is
        kept, too (see `is_better`; the first of equal steps); '' keeps none.
      timeout: the longest time to write a checkpoint, in seconds.
      folder: the folder's name. In `checkpoints`, a step that is complete
        already is not saved again; in others, it is replaced.

    Raises:
      SaveError: the folder cannot be created.
    """
    self.directory = files.absolute(workdir) / folder
    self.latest_step: int | None = None
    self._replaces = folder != folders.FOLDER
    self._timeout = timeout
    self._best = best
    self._values: dict[int, float] = {}
    self._policies = [checkpoint_managers.LatestN(keep)]
    if keep_every:
      self._policies.append(checkpoint_managers.EveryNSteps(keep_every))
    # The save under way, and its step.
    self._manager: _Manager | None = None
    self._step = 0
    with self._explained(f'{self.directory} cannot be opened'):
      self.directory.mkdir(parents=True, exist_ok=True)
      steps = folders.complete_steps(self.directory)
    if steps:
      self.latest_step = int(steps[-1].name)

  def note(self, step: int, metrics: Mapping[str, Any]) -> bool:
    """Remembers a step's value of the metric `best`, if `metrics` has it.

    Args:
      step: a step, which may or may not be saved already.
      metrics: the metrics of that step, numbers by name. A value that is not
        finite counts as missing.

    Returns:
      Whether the value is better than those of all other steps.
    """
    if self._best not in metrics:
      return False
    self._values.pop(step, None)
    value = float(metrics[self._best])
    if not math.isfinite(value):
      return False
    others = self._values.values()
    better = all(is_better(self._best, value, other) for other in others)
    self._values[step] = value
    return better

  def save(
    self, step: int, state: Any, digests: Mapping[str, str] | None = None
  ) -> None:
    """Starts saving; returns when the state is copied off the devices.

    First waits for the previous save to end. Removes what a killed run left.

    Args:
      step: the step, which names the checkpoint.
      state: a tree of arrays.
      digests: its `record.digests`, if they are known.

    Raises:
      SaveError: the previous save failed, or this one could not start. Names
        the step, the reason and the last complete step.
    """
    self.wait()
    tree = flax.serialization.to_state_dict(state)
    saved_as = record.build(tree, digests or record.digests(tree))
    self.check_space(tree)
    item = ocp.args.Composite(
      **{
        folders.STATE: ocp.args.PyTreeSave(tree),
        record.ITEM: ocp.args.JsonSave(saved_as),
      }
    )
    with self._explained(self._failed(step)), contextlib.ExitStack() as stack:
      manager = self._open(step)
      stack.callback(manager.close)
      exists = step in manager.all_steps()
      if exists and self._replaces:
        manager.delete(step)
      if not exists or self._replaces:
        # Without `force`, Orbax skips steps below the newest.
        manager.save(step, args=item, force=True)
      self._manager, self._step = manager, step
      stack.pop_all()

  def check_space(self, state: Any) -> None:
    """Raises SaveError unless the disk has space for one more state.

    Args:
      state: arrays, or their shapes and dtypes.
    """
    # Only file systems that report their size are asked.
    if buckets.is_store(self.directory) or jax.process_index():
      return
    needed = _BESIDE + sum(
      math.prod(leaf.shape) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(state)
    )
    disk = shutil.disk_usage(self.directory)
    if disk.total and disk.free < needed:
      raise errors.SaveError(
        f'No space for a checkpoint in {self.directory}: it takes'
        f' {needed / 1e6:,.1f} MB, and {disk.free / 1e6:,.1f} MB are free. Make'
        f' room and start the same command again. {self._last()}'
      )

  def is_saving(self) -> bool:
    """Whether this process is still writing the last save."""
    return bool(self._manager) and self._manager.is_saving_in_progress()

  def check(self) -> None:
    """Raises SaveError if the last save failed; does not wait."""
    if not self.is_saving():
      self.wait()

  def wait(self) -> None:
    """Waits for the current save; raises SaveError if it failed."""
    if self._manager is None:
      return
    manager, self._manager = self._manager, None
    with self._explained(self._failed(self._step)), contextlib.closing(manager):
      manager.wait_until_finished()
      # Orbax does not notice when one of its threads dies.
      path = self.directory / str(self._step)
      if jax.process_index() == 0 and not path.exists():
        raise FileNotFoundError(f'nothing was written to {path}')
    self.latest_step = self._step

  def close(self) -> None:
    """Waits for the last save.

    Raises:
      SaveError: see `wait`. While another exception is handled, this one is
        only logged, so that it does not hide the other.
    """
    handled = sys.exception()
    try:
      self.wait()
    except errors.SaveError as error:
      if handled is None:
        raise
      logging.error('%s', error)

  def _open(self, step: int) -> _Manager:
    # Orbax's policy for the best step reads metrics from files that may be
    # damaged.
    best = []
    if values := dict(self._values):
      saved = folders.complete_steps(self.directory)
      steps = {step, *(int(path.name) for path in saved)}
      noted = {at: values[at] for at in sorted(values.keys() & steps)}
      choose = min if self._best.endswith('loss') else max
      best = [choose(noted, key=noted.get)] if noted else []
    processes = jax.process_count()
    options = ocp.CheckpointManagerOptions(
      create=False,
      preservation_policy=checkpoint_managers.AnyPreservationPolicy(
        [*self._policies, checkpoint_managers.CustomSteps(best)]
      ),
      # A killed run may have left incomplete checkpoints.
      cleanup_tmp_directories=True,
      # Skips Orbax's metrics.
      lightweight_initialize=True,
      async_options=ocp.options.AsyncOptions(
        timeout_secs=max(1, round(self._timeout))
      ),
      # With named processes, Orbax waits through the coordination service, with
      # time limits. Otherwise it waits through a computation on all devices,
      # which could hang, and needs the same order of calls on all processes.
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        active_processes=set(range(processes)) if processes > 1 else None
      ),
    )
    return _Manager(self.directory, options=options)

  def _failed(self, step: int) -> str:
    return (
      f'The checkpoint of step {step} could not be saved to {self.directory}'
    )

  @contextlib.contextmanager
  def _explained(self, what: str) -> Iterator[None]:
    """Raises SaveError for any error inside."""
    try:
      yield
    except Exception as error:  # The type depends on the file system.
      # A restart helps if a bucket answers again (it tests the rights first),
      # or if another process was lost, which ends the save of this one.
      restart = buckets.is_store(self.directory) or (
        jax.process_count() > 1
        and any(
          isinstance(cause, jax.errors.JaxRuntimeError)
          and distributed.STATUS.match(str(cause))
          for cause in record.causes(error)
        )
      )
      kind = errors.StoreError if restart else errors.SaveError
      reason = record.reason(error)
      if isinstance(error, TimeoutError):
        reason += '; the storage is slow, or checkpoint.timeout is too low'
      raise kind(f'{what}: {reason}. {self._last()}') from error

  def _last(self) -> str:
    if self.latest_step is None:
      return 'No checkpoint is complete yet.'
    return f'The last complete one is {self.directory}/{self.latest_step}.'


def save_params(
  workdir: epath.PathLike,
  kind: str,
  step: int,
  params: Any,
  *,
  timeout: float = 1800.0,
) -> epath.Path:
  """Saves parameters to `WORKDIR/KIND/STEP`, replacing the previous ones.

  Those of another step are deleted when the new ones are complete, those of the
  same step before. Returns when everything is written. All processes must call
  this; each writes its shards.

  Args:
    workdir: the run's directory.
    kind: `folders.BEST` or `folders.FINAL`.
    step: the step of the parameters.
    params: the parameters to evaluate with, a tree of arrays; the averaged
      ones if the run averages.
    timeout: see `Checkpoints`.

  Returns:
    The checkpoint's path, for `read_params`.

  Raises:
    SaveError: the parameters could not be written.
  """
  checkpoints = Checkpoints(workdir, keep=1, timeout=timeout, folder=kind)
  checkpoints.save(step, {'params': params})
  checkpoints.wait()
  return checkpoints.directory / str(step)
