"""Saves checkpoints in the background, and decides which of them to keep."""

import math
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import flax.serialization
import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax.checkpoint import faults, folders, record
from vit_jax.runtime import errors
from vit_jax.workdir import files

# Bytes for the metadata. The arrays need at most their size: Orbax compresses
# them a little.
_BESIDE = 2**20


def is_better(metric: str, value: float, than: float) -> bool:
  """Whether a metric improved: lower is better if its name ends in `loss`."""
  return value < than if metric.endswith('loss') else value > than


class Saver:
  """Saves to one folder, one save at a time; keeps only the last one.

  All processes must make the same calls.

  Attributes:
    directory: the parent of the steps' directories.
    latest_step: the newest step that was completely saved; None if there is
      none.
  """

  def __init__(self, directory: epath.Path, timeout: float, *, replace=False):
    """Creates the folder.

    Args:
      directory: an absolute path.
      timeout: the longest time to wait for a save, in seconds.
      replace: whether a step that exists is saved anew.

    Raises:
      SaveError: the folder cannot be created.
    """
    self.directory = directory
    self.replace = replace
    self.timeout = timeout
    self._save: _Save | None = None
    try:
      directory.mkdir(parents=True, exist_ok=True)
      steps = folders.complete_steps(directory)
    except Exception as error:  # The type depends on the file system.
      raise self._error(f'{directory} cannot be opened', error) from error
    self.latest_step = int(steps[-1].name) if steps else None

  def kept(self, steps: Sequence[int]) -> set[int]:
    """Returns the steps to keep, of all in the order of saving."""
    return {steps[-1]}

  def save(
    self,
    step: int,
    state: Any,
    metrics: Mapping[str, Any] | None = None,
  ) -> None:
    """Starts saving; returns when the state is copied off the devices.

    First waits for the previous save to end. Removes what a killed run left.

    Args:
      step: the step, which names the checkpoint.
      state: a tree of arrays.
      metrics: the metrics of this step, numbers by name.

    Raises:
      SaveError: the previous save failed or did not end within the time limit,
        or this one could not start. Names the step, the reason and the last
        complete step.
    """
    self._finish()
    tree = flax.serialization.to_state_dict(state)
    saved_as = record.build(tree, metrics)
    self.check_space(tree)
    self._save = _Save(self, step, tree, saved_as)
    self._wait_for(self._save, self._save.copied)
    self.check()

  def check_space(self, state: Any) -> None:
    """Raises SaveError unless the disk has space for one more state.

    Args:
      state: arrays, or their shapes and dtypes.
    """
    # Only file systems that report their size are asked.
    if '://' in str(self.directory) or jax.process_index():
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

  def check(self) -> None:
    """Raises SaveError if the last save failed; does not wait."""
    if self._save and self._save.done.is_set():
      self._finish()

  def wait(self) -> None:
    """Waits for the current save.

    Raises:
      SaveError: the save failed, or did not end within the time limit.
    """
    self._finish()

  def _finish(self) -> None:
    if (save := self._save) is None:
      return
    self._wait_for(save, save.done)
    self._save = None
    if save.error:
      what = f'The checkpoint of step {save.step} could not be saved to'
      raise self._error(f'{what} {self.directory}', save.error) from save.error

  def close(self) -> None:
    """Waits for the last save.

    Raises:
      SaveError: see `wait`. While another exception is handled, this one is
        only logged, so that it does not hide the other.
    """
    handled = sys.exception()
    try:
      self._finish()
    except errors.SaveError as error:
      if handled is None:
        raise
      logging.error('%s', error)

  def _wait_for(self, save: '_Save', event: threading.Event) -> None:
    if event.wait(self.timeout):
      return
    self._save = None  # Nobody must wait that long for it again.
    raise self._error(
      f'Saving the checkpoint of step {save.step} to {self.directory} has not'
      f' ended within {self.timeout:g} s',
      TimeoutError(
        'the file system, or another process, does not answer, or'
        ' checkpoint.timeout is too low'
      ),
    )

  def _error(self, what: str, error: BaseException) -> errors.SaveError:
    unanswered = faults.is_unanswered(self.directory, error)
    kind = errors.StoreError if unanswered else errors.SaveError
    return kind(f'{what}: {faults.reason(error)}. {self._last()}')

  def _last(self) -> str:
    if (last := getattr(self, 'latest_step', None)) is None:
      return 'No checkpoint is complete yet.'
    return f'The last complete one is {self.directory}/{last}.'


class _Save(threading.Thread):
  """One save, from opening the folder until it is complete.

  It has a thread, so that waiting for it can have a limit: Orbax's limits do
  not cover a file system that hangs. The thread is a daemon, and so are those
  that Orbax starts from it, so none of them keeps the process from ending.
  """

  def __init__(self, saver: Saver, step: int, tree: Any, saved_as: Any):
    super().__init__(daemon=True, name='checkpoint')
    self._saver = saver
    self.step = step
    self._item = ocp.args.Composite(
      **{
        folders.STATE: ocp.args.PyTreeSave(tree),
        record.ITEM: ocp.args.JsonSave(saved_as),
      }
    )
    self.copied, self.done = threading.Event(), threading.Event()
    self.error: BaseException | None = None
    self.start()

  def run(self) -> None:
    try:
      with self._manager() as manager:
        exists = self.step in manager.all_steps()
        if exists and self._saver.replace:
          manager.delete(self.step)
        if not exists or self._saver.replace:
          # Without `force`, Orbax skips steps below the newest.
          manager.save(self.step, args=self._item, force=True)
          self._item = None  # Frees the arrays.
          self.copied.set()
          manager.wait_until_finished()
      # Orbax does not notice when one of its threads dies.
      path = self._saver.directory / str(self.step)
      if jax.process_index() == 0 and not path.exists():
        raise FileNotFoundError(f'nothing was written to {path}')
      self._saver.latest_step = self.step
    except BaseException as error:  # The waiting thread raises it.
      self.error = error
    finally:
      self.done.set()
      self.copied.set()

  def _manager(self) -> ocp.CheckpointManager:
    processes = jax.process_count()
    options = ocp.CheckpointManagerOptions(
      create=False,
      preservation_policy=_Policy(self._saver),
      # A killed run may have left incomplete checkpoints.
      cleanup_tmp_directories=True,
      # Skips Orbax's metrics, which may be damaged; `record` has its own.
      lightweight_initialize=True,
      # Later than the saver's own limit, whose error names the remedy.
      async_options=ocp.options.AsyncOptions(
        timeout_secs=int(self._saver.timeout) + 60
      ),
      # With named processes, Orbax waits through the coordination service, with
      # time limits. Otherwise it waits through a computation on all devices,
      # which could hang, and needs the same order of calls on all processes.
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        active_processes=set(range(processes)) if processes > 1 else None
      ),
    )
    return ocp.CheckpointManager(self._saver.directory, options=options)


class _Policy(checkpoint_managers.PreservationPolicy):
  """Tells Orbax which steps to keep.

  Orbax's own policies read metrics from files that may be damaged.
  """

  def __init__(self, saver: Saver):
    self._saver = saver

  def should_preserve(self, checkpoints, *, context):
    del context
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = self._saver.kept(steps)
    return [step in kept for step in steps]


class Checkpoints(Saver):
  """The checkpoints of one run's states.

  A step that is complete already is not saved again.
  """

  def __init__(
    self,
    workdir: epath.PathLike,
    *,
    keep: int,
    keep_every: int,
    best: str = '',
    timeout: float = 1800.0,
  ):
    """Creates the run's checkpoint folder.

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
    super().__init__(files.absolute(workdir) / folders.FOLDER, timeout)
    self._keep = keep
    self._keep_every = keep_every
    self._best = best
    self._values: dict[int, float] = {}
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

  def kept(self, steps: Sequence[int]) -> set[int]:
    kept = set(steps[-self._keep :])
    if self._keep_every:
      kept |= {step for step in steps if step % self._keep_every == 0}
    best = None
    for step in sorted(self._values.keys() & set(steps)):
      value = self._values[step]
      if best is None or is_better(self._best, value, self._values[best]):
        best = step
    return kept if best is None else kept | {best}

  def save(
    self,
    step: int,
    state: Any,
    metrics: Mapping[str, Any] | None = None,
  ) -> None:
    """Saves as `Saver.save` does, and notes the metrics.

    `note` can give the value of `best` later. Without a finite value the step
    cannot be best.
    """
    self.note(step, metrics or {})
    super().save(step, state, metrics)


def save_params(
  workdir: epath.PathLike,
  kind: str,
  step: int,
  params: Any,
  metrics: Mapping[str, Any] | None = None,
  *,
  timeout: float = 1800.0,
) -> epath.Path:
  """Saves parameters to `WORKDIR/KIND/STEP`, replacing the previous ones.

  Those of another step are deleted when the new ones are complete, those of the
  same step before. Returns when everything is written. All processes must call
  this; each writes its shards.

  Args:
    workdir: the run's directory.
    kind: 'best' or 'final'.
    step: the step of the parameters.
    params: the parameters to evaluate with, a tree of arrays; the averaged
      ones if the run averages.
    metrics: the metrics of this step, for `read_metrics`.
    timeout: the longest time to wait, in seconds.

  Returns:
    The checkpoint's path, for `read_params`.

  Raises:
    ValueError: `kind` is neither 'best' nor 'final'.
    SaveError: the parameters could not be written within the time limit.
  """
  if kind not in (folders.BEST, folders.FINAL):
    raise ValueError(
      f'kind={kind!r} must be {folders.BEST!r} or {folders.FINAL!r}.'
    )
  saver = Saver(files.absolute(workdir) / kind, timeout, replace=True)
  saver.save(step, {'params': params}, metrics)
  saver.wait()
  return saver.directory / str(step)
