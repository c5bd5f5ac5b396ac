"""Launches runs on a pool of TPU VMs, one on each VM (needs gcloud).

`launch/tpu_vm.py create` and `setup` must have prepared the slices.
"""

import os
import signal
from collections.abc import Sequence

from vit_jax.launch import queued_resource, workers
from vit_jax.launch import shell as shell_lib
from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run


class TpuVms:
  """Starts runs on slices; the runs continue when this process dies."""

  interval = 60.0  # Seconds between polls; each poll is an ssh to all machines.
  survives = True

  def __init__(self, folders: Folders, names: Sequence[str]):
    """Checks the arguments; does not contact the slices.

    Args:
      folders: the sweep's folders; all machines must see `folders.shared`.
      names: names of the TPU VMs.

    Raises:
      ValueError: there are no names, a name occurs twice, `folders.shared` is
        a relative path, or the project or the zone is not set.
    """
    if not names or len(set(names)) < len(names):
      raise ValueError(
        f'--tpus={",".join(names)}: expected the names of different TPU VMs.'
      )
    if not os.fspath(folders.shared).startswith(('gs://', '/')):
      raise ValueError(f'--runs={folders.shared}: expected gs://BUCKET/PATH.')
    place = {}
    for key in ('project', 'zone'):
      section = 'COMPUTE' if key == 'zone' else 'CORE'
      variable = f'CLOUDSDK_{section}_{key.upper()}'
      if not os.environ.get(variable):
        raise ValueError(
          f'--launcher=tpu_vm needs ${variable}, which is unset.'
        )
      place[key] = os.environ[variable]
    self.slots = len(names)
    self._targets = {
      name: queued_resource.Target(name=name, **place) for name in names
    }
    self._shell = shell_lib.Shell(dry_run=False)
    self._error = shell_lib.CommandError
    self._folders = folders
    self._busy: set[str] = set()
    self._not_started: set[str] = set()

  def start(self, run: Run) -> str:
    """Starts a run on a free slice; returns the slice's name."""
    name = next(name for name in self._targets if name not in self._busy)
    self._busy.add(name)
    try:
      workers.start(
        self._shell,
        self._targets[name],
        commands.main_flags(run, self._folders),
      )
    except self._error as error:
      # The machines would report the state of the run before.
      self._not_started.add(name)
      self._shell.say(f'{run.name} did not start on {name}: {error}')
    return name

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None during the run."""
    if handle not in self._targets:
      raise ValueError(
        f'A run is on {handle}, which --tpus= does not name: add it.'
      )
    self._busy.add(handle)  # An earlier launcher may have started the run.
    if handle in self._not_started:
      self._not_started.discard(handle)
      self._busy.discard(handle)
      return -signal.SIGKILL
    try:
      code = exit_code(workers.status(self._shell, self._targets[handle]))
    except self._error:
      return None  # The run continues while the slice is out of reach.
    if code is not None:
      self._busy.discard(handle)
    return code

  def stop(self, handle: str) -> None:
    """Ends a run with SIGTERM, and waits until it has saved."""
    if handle in self._targets:
      try:
        workers.stop(self._shell, self._targets[handle])
      except self._error as error:
        self._shell.say(f'the run on {handle} could not be stopped: {error}')


def exit_code(found: Sequence) -> int | None:
  """Combines the exit codes of a slice's machines.

  Args:
    found: the slice's `launch.workers.Worker`s.

  Returns:
    None while any machine's run is alive. Otherwise 0 if all ended with 0, 1 if
    one ended with 1, else the code of a run that must restart.
  """
  if any(worker.alive for worker in found):
    return None
  if not found or any(worker.state in ('new', 'idle') for worker in found):
    return -signal.SIGKILL  # The run was lost with its machines.
  codes = [worker.code for worker in found]
  if any(worker.state not in ('ended', 'gave_up') for worker in found):
    return 75
  return 1 if 1 in codes else next(filter(None, codes), 0)
