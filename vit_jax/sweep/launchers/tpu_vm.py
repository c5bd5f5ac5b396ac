"""Launches runs on a pool of TPU VMs, one on each VM.

It starts the program `vit_jax.launch.tpu_vm`, whose commands `create` and
`setup` must have prepared the slices.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from vit_jax.launch import workers
from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run

_PROGRAM = (sys.executable, '-m', 'vit_jax.launch.tpu_vm')


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
    for variable in ('CLOUDSDK_CORE_PROJECT', 'CLOUDSDK_COMPUTE_ZONE'):
      if not os.environ.get(variable):
        raise ValueError(
          f'--launcher=tpu_vm needs ${variable}, which is unset.'
        )
    self.slots = len(names)
    self._names = names
    self._folders = folders
    self._busy: set[str] = set()
    self._not_started: set[str] = set()

  def start(self, run: Run) -> str:
    """Starts a run on a free slice; returns the slice's name."""
    name = next(name for name in self._names if name not in self._busy)
    self._busy.add(name)
    words = ['--', *commands.main_flags(run, self._folders)]
    if _call('run', name, *words).returncode:
      # The machines would report the state of the run before.
      self._not_started.add(name)
    return name

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None during the run."""
    if handle not in self._names:
      raise ValueError(
        f'A run is on {handle}, which --tpus= does not name: add it.'
      )
    self._busy.add(handle)  # An earlier launcher may have started the run.
    if handle in self._not_started:
      self._not_started.discard(handle)
      code = -signal.SIGKILL
    else:
      status = _call('status', handle)
      # The run continues while the slice is out of reach.
      code = None if status.returncode else exit_code(status.stdout)
    if code is not None:
      self._busy.discard(handle)
    return code

  def stop(self, handle: str) -> None:
    """Ends a run with SIGTERM, and waits until it has saved."""
    if handle in self._names:
      _call('stop', handle)


def _call(command, name, *words) -> subprocess.CompletedProcess:
  """Runs a command on a slice; the user sees its errors."""
  return subprocess.run(
    [*_PROGRAM, command, f'--name={name}', *words],
    stdin=subprocess.DEVNULL,  # Its group may not read from the terminal.
    stdout=subprocess.PIPE,
    text=True,
    check=False,
    process_group=0,  # Only this process handles Ctrl-C.
  )


def exit_code(status: str) -> int | None:
  """Combines the exit codes of a slice's machines.

  Args:
    status: what the program's `status` prints: a line for each machine, such as
      `worker=NAME alive=no state=ended code=0 | last line of its log`.

  Returns:
    None while any machine's run is alive, or the TPU VM is not ready. Otherwise
    0 if all ended with 0, 1 if one ended with 1, else the code of a run that
    must restart.
  """
  found = workers.parse(status)
  states = {worker.state for worker in found}
  # A run that started again on a slice that was taken away would only fail.
  if not found or any(worker.alive for worker in found):
    return None
  if states & {'new', 'idle'}:
    return -signal.SIGKILL  # The run was lost with its machines.
  if states - {'ended', 'gave_up'}:
    return 75
  codes = [worker.code for worker in found]
  return 1 if 1 in codes else next(filter(None, codes), 0)
