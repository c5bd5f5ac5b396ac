"""Runs on this machine, some at a time, each on its own cores and devices."""

import glob
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run

# Chips of one process -> how they lie, for libtpu.
_TPU_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}

# Of processes on CPUs, which otherwise give the buffers of each step back to
# the system, and have them zeroed anew at the next: a fifth of a small model's
# time (LOG.md). These are glibc's; others ignore them.
KEEP_MEMORY = {
  'MALLOC_ARENA_MAX': '1',
  'MALLOC_MMAP_THRESHOLD_': str(2**30),
  'MALLOC_TOP_PAD_': str(2**28),
  'MALLOC_TRIM_THRESHOLD_': str(2**33),
}


class Local:
  """Starts processes that do not outlive this one."""

  interval = 0.1  # Seconds between polls.
  survives = False  # Whether runs go on when this process dies.

  def __init__(
    self,
    folders: Folders,
    parallel: int,
    *,
    command: Callable[[Run, Folders], Sequence[str]] = commands.command,
  ):
    """Divides the machine.

    Args:
      folders: where the runs work and log.
      parallel: how many at a time; 0 is one a GPU or TPU chip, else one.
      command: makes the command of a run.

    Raises:
      ValueError: there are accelerators, but not for so many.
    """
    kind, devices = accelerators()
    self.slots = parallel or max(len(devices), 1)
    self._environments = [
      environment(kind, part) if self.slots > 1 else {}
      for part in divide(devices, self.slots, kind)
    ]
    self._defaults = KEEP_MEMORY if kind == 'cpu' else {}
    self._cores = divide_cores(cores(), self.slots)
    self._folders = folders
    self._command = command
    self._processes: dict[str, tuple[int, subprocess.Popen]] = {}

  def start(self, run: Run) -> str:
    """Starts a run in a free slot; returns the process."""
    used = {slot for slot, _ in self._processes.values()}
    slot = next(i for i in range(self.slots) if i not in used)
    log = self._folders.log(run.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open('ab') as file:
      process = subprocess.Popen(
        [
          *(sys.executable, '-m', 'vit_jax.sweep.worker', str(os.getpid())),
          ','.join(map(str, self._cores[slot])),
          *self._command(run, self._folders),
        ],
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        env=self._defaults | os.environ | self._environments[slot],
        # Ctrl-C is for the launcher, which passes it on once.
        process_group=0,
      )
    handle = str(process.pid)
    self._processes[handle] = slot, process
    return handle

  def poll(self, handle: str) -> int | None:
    """The exit code, negative for a signal; None while it runs."""
    code = self._processes[handle][1].poll()
    if code is not None:
      del self._processes[handle]
    return code

  def stop(self, handle: str) -> None:
    """Asks a run to save and to end; `poll` says when it has."""
    self._processes[handle][1].terminate()


def cores() -> list[int]:
  """The cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def divide_cores(ids: Sequence[int], slots: int) -> list[list[int]]:
  """Splits cores as evenly as possible; with too few of them they are shared.

  Neighbours stay together: they share caches.
  """
  if slots >= len(ids):
    return [[ids[slot % len(ids)]] for slot in range(slots)]
  bounds = [slot * len(ids) // slots for slot in range(slots + 1)]
  return [list(ids[bounds[i] : bounds[i + 1]]) for i in range(slots)]


def accelerators(
  variables: Mapping[str, str] = os.environ,
) -> tuple[str, list[str]]:
  """The kind, `gpu`, `tpu` or `cpu`, and the devices that runs may use.

  Asked of the system: JAX would take hold of them.
  """
  if variables.get('JAX_PLATFORMS') == 'cpu':
    return 'cpu', []
  for kind, variable, patterns in (
    ('gpu', 'CUDA_VISIBLE_DEVICES', ['/dev/nvidia[0-9]*']),
    ('tpu', 'TPU_VISIBLE_CHIPS', ['/dev/accel[0-9]*', '/dev/vfio/[0-9]*']),
  ):
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    if found:
      ids = [str(index) for index in range(len(found))]
      named = variables.get(variable)
      return kind, ids if named is None else [i for i in named.split(',') if i]
  return 'cpu', []


def divide(ids: Sequence[str], slots: int, kind: str) -> list[list[str]]:
  """Splits devices evenly.

  Raises:
    ValueError: there are not as many for each, or, of TPUs, a number that no
      process can have.
  """
  if slots == 1 or not ids:
    return [list(ids) for _ in range(slots)]
  each, rest = divmod(len(ids), slots)
  if rest or (kind == 'tpu' and each not in _TPU_BOUNDS):
    raise ValueError(
      f'--parallel={slots}: the {len(ids)} devices ({kind}) of this machine'
      ' can not be divided by that. Runs on the CPU need JAX_PLATFORMS=cpu.'
    )
  return [list(ids[i * each : (i + 1) * each]) for i in range(slots)]


def environment(kind: str, ids: Sequence[str]) -> dict[str, str]:
  """The variables that show these devices to a process, and no others."""
  if kind == 'gpu':
    return {'CUDA_VISIBLE_DEVICES': ','.join(ids)}
  if kind == 'tpu':
    return {
      'TPU_VISIBLE_CHIPS': ','.join(ids),
      'TPU_VISIBLE_DEVICES': ','.join(ids),  # Its name in older versions.
      'TPU_CHIPS_PER_PROCESS_BOUNDS': _TPU_BOUNDS[len(ids)],
      'TPU_PROCESS_BOUNDS': '1,1,1',
    }
  return {}
