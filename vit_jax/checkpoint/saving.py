"""Saves asynchronously, one save at a time, with a time limit on each wait."""

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax.checkpoint import damage, folders, leaks, record, space
from vit_jax.runtime import errors, jax_internals

# On import, before JAX starts threads: existing arenas would stay.
leaks.plug()


class Saver:
  """Saves to one folder in the background, and deletes old checkpoints."""

  def __init__(
    self,
    directory: epath.Path,
    kept: Callable[[Sequence[int]], set[int]],
    timeout: float,
  ):
    """Opens (and creates) the folder, and removes incomplete checkpoints.

    Args:
      directory: the parent of the steps' directories.
      kept: maps the steps, in the order of saving, to the steps to keep.
      timeout: the longest time to wait for any one operation, in seconds.

    Raises:
      SaveError: the folder cannot be opened within the time limit.
    """
    self.directory = directory
    self._policy = _Policy(directory, kept)
    self._timeout = timeout
    self._under_way: _Save | None = None
    self._given_up: _Save | None = None
    self._complete: set[int] = set()
    self._manager: ocp.CheckpointManager | None = None
    self._listed = True
    self._open()

  @property
  def latest_step(self) -> int | None:
    """The newest step that was completely saved; does not wait."""
    complete = self._complete - folders.damaged_steps(self.directory)
    save = self._under_way
    if save and save.done.is_set() and not save.error:
      complete.add(save.step)
    return max(complete, default=None)

  def save(self, step: int, item: Any, saved_as: Mapping[str, Any]) -> None:
    """Waits for the previous save, then starts this one.

    Returns when the arrays are copied off the devices. An existing step is not
    saved again, unless it is known to be damaged.

    Args:
      step: the step, which names the checkpoint.
      item: a tree of arrays.
      saved_as: see `record.build`.

    Raises:
      SaveError: this save could not start, or the previous one failed.
    """
    self.wait()
    if self._manager is None:
      self._open()
    elif self._listed:
      # `restore_newest` may have moved damaged checkpoints away since.
      self._bounded(self._manager.reload, f'Listing {self.directory}')
      self._complete = set(self._manager.all_steps())
    self._listed = False
    if step in self._manager.all_steps():
      if step not in folders.damaged_steps(self.directory):
        logging.info('Step %d is in %s already.', step, self.directory)
        return
      path = self.directory / str(step)
      logging.warning('Deleting %s, which is damaged, to save it anew.', path)
      self._bounded(lambda: self._manager.delete(step), f'Deleting {path}')
      self._complete.discard(step)
    folders.discard_damaged(self.directory / str(step))
    self.check_space(item)
    args = ocp.args.Composite(
      **{
        folders.STATE: ocp.args.PyTreeSave(item),
        record.ITEM: ocp.args.JsonSave(dict(saved_as)),
      }
    )
    self._under_way = save = _Save(self._manager, step, args)
    save.start()
    if not save.copied.wait(self._timeout):
      self._given_up = save
      raise self._too_late(step)
    if save.done.is_set():
      self.wait()  # Raises if the save failed at once.

  def check_space(self, item: Any) -> None:
    """Raises SaveError unless the disk has space for one more checkpoint."""
    found = self._bounded(
      lambda: space.shortage(self.directory, item), f'Asking {self.directory}'
    )
    if found:
      raise errors.SaveError(f'{found} {self._last()}')

  def wait(self) -> None:
    """Waits for the current save.

    Raises:
      SaveError: the save failed, or did not end within the time limit.
    """
    save = self._under_way
    if save is None:
      return
    # After one timeout, `close` must not wait that long again.
    if not save.done.wait(0 if save is self._given_up else self._timeout):
      self._given_up = save
      raise self._too_late(save.step)
    self._under_way = None
    if save.error is None:
      self._complete = set(self._manager.all_steps())
      return
    # The manager no longer knows what is on disk; the next one cleans up.
    self._drop_manager()
    raise self._error(
      f'The checkpoint of step {save.step} could not be saved to'
      f' {self.directory}: {cause(save.error)}. {self._last()}',
      save.error,
    ) from save.error

  def check(self) -> None:
    """Raises SaveError if the last save failed; does not wait."""
    if self._under_way and self._under_way.done.is_set():
      self.wait()

  def close(self) -> None:
    """Waits for the current save and releases everything.

    Raises:
      SaveError: see `wait`.
    """
    try:
      self.wait()
    finally:
      # A save that hangs cannot be closed; its threads end with the process.
      if self._manager is not None and self._under_way is None:
        manager, self._manager = self._manager, None
        self._bounded(manager.close, f'Closing {self.directory}')

  def _open(self) -> None:
    processes = jax.process_count()
    limit = max(1, int(self._timeout))
    jax_internals.set_orbax_limit(limit)
    options = ocp.CheckpointManagerOptions(
      create=False,
      preservation_policy=self._policy,
      enable_async_checkpointing=True,
      # A killed run may have left incomplete checkpoints.
      cleanup_tmp_directories=True,
      # Skips Orbax's metrics, which may be damaged; `record` has its own.
      lightweight_initialize=True,
      async_options=ocp.options.AsyncOptions(timeout_secs=limit),
      # With named processes, Orbax waits through the coordination service, with
      # time limits. Otherwise it waits through a computation on all devices,
      # which could hang, and needs the same order of calls on all processes.
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        active_processes=set(range(processes)) if processes > 1 else None
      ),
    )

    def opened():
      self.directory.mkdir(parents=True, exist_ok=True)
      return ocp.CheckpointManager(self.directory, options=options)

    self._manager = self._bounded(opened, f'Opening {self.directory}')
    self._complete = set(self._manager.all_steps())

  def _drop_manager(self) -> None:
    manager, self._manager = self._manager, None

    def close():
      # Orbax raises a save's error once in each thread: here, not in `close`.
      with contextlib.suppress(Exception):
        manager.wait_until_finished()
      manager.close()

    try:
      self._bounded(close, f'Closing {self.directory}')
    except errors.SaveError as error:
      logging.warning('%s', error)

  def _bounded(self, function: Callable[[], Any], what: str) -> Any:
    """Calls with a time limit: the function hangs if the file system does."""
    call = _Call(function)
    call.start()
    if not call.done.wait(self._timeout):
      raise self._error(
        f'{what} has not ended within {self._timeout:g} s: the file system'
        ' does not answer.'
      )
    if call.error is not None:
      raise self._error(
        f'{what} failed: {cause(call.error)}.', call.error
      ) from call.error
    return call.result

  def _too_late(self, step: int) -> errors.SaveError:
    return self._error(
      f'Saving the checkpoint of step {step} to {self.directory} has not ended'
      f' within {self._timeout:g} s: the file system, or another process, does'
      f' not answer, or the limit is too low. {self._last()}'
    )

  def _error(
    self, message: str, reason: BaseException | None = None
  ) -> errors.SaveError:
    """Builds the error to raise; no `reason` means a timeout."""
    if damage.is_unanswered(self.directory, reason or TimeoutError()):
      return errors.StoreError(message)
    return errors.SaveError(message)

  def _last(self) -> str:
    if (last := self.latest_step) is None:
      return 'No checkpoint is complete yet.'
    return f'The last complete one is {self.directory}/{last}.'


class _Policy(checkpoint_managers.PreservationPolicy):
  """Tells Orbax which steps to keep.

  Orbax's own policies read metrics from files that may be damaged. A damaged
  checkpoint does not count as one of those to keep, and is not deleted.
  """

  def __init__(self, directory, kept):
    self._directory = directory
    self._kept = kept

  def should_preserve(self, checkpoints, *, context):
    del context
    steps = [checkpoint.step for checkpoint in checkpoints]
    unusable = folders.damaged_steps(self._directory)
    kept = self._kept([s for s in steps if s not in unusable]) | unusable
    return [step in kept for step in steps]


class _Call(threading.Thread):
  """A call in a thread, so that waiting for it can have a time limit.

  Orbax's own limits do not cover a file system that hangs. The thread is a
  daemon, and so are the threads that Orbax starts from it: none of them keeps
  the process from ending.
  """

  def __init__(self, function: Callable[[], Any]):
    super().__init__(daemon=True, name='checkpoint')
    self._function = function
    self.done = threading.Event()
    self.result: Any = None
    self.error: BaseException | None = None

  def run(self) -> None:
    try:
      self.result = self._function()
    except BaseException as error:  # The waiting thread raises it.
      self.error = error
    finally:
      self.finished()

  def finished(self) -> None:
    self.done.set()


class _Save(_Call):
  """A save, from its start until it is complete."""

  def __init__(self, manager: ocp.CheckpointManager, step: int, args: Any):
    super().__init__(self._run_save)
    self.step = step
    self.copied = threading.Event()
    self._manager = manager
    self._path = manager.directory / str(step)
    self._args = args

  def _run_save(self) -> None:
    # Without `force`, Orbax skips steps below the newest.
    self._manager.save(self.step, args=self._args, force=True)
    self._args = None  # Frees the arrays.
    self.copied.set()
    self._manager.wait_until_finished()
    leaks.give_back()
    # Orbax does not notice when one of its threads dies.
    if jax.process_index() == 0 and not self._path.exists():
      raise FileNotFoundError(f'nothing was written to {self._path}')

  def finished(self) -> None:
    super().finished()
    self.copied.set()


def cause(error: BaseException) -> str:
  """Returns the reason of a failed save in one line."""
  chain = []
  while error is not None and error not in chain:
    chain.append(error)
    error = error.__cause__ or error.__context__
  # Orbax's time limit; the operating system's has an `errno`.
  if isinstance(chain[0], TimeoutError) and not chain[0].errno:
    return 'the file system, or another process, did not answer in time'
  for link in chain:
    if isinstance(link, OSError) and link.errno:
      return f'{link.strerror} ({errno.errorcode.get(link.errno, link.errno)})'
  # TensorStore's errors have no `errno`: the reason is in their text.
  text = ' '.join(str(chain[0]).split())
  if found := re.search(r'No space left on device|Disk quota exceeded', text):
    return found[0]
  # A write of TensorStore that meets the limit names no reason.
  if re.search(r'File too large|OUT_OF_RANGE: Error writing', text):
    error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return errors.described(error).rstrip('.')
  if found := re.search(r'Read-only file system|Permission denied', text):
    return found[0]
  return f'{type(chain[0]).__name__}: {text[:300]}'.rstrip('.')
