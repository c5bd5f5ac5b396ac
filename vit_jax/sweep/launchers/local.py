"""Launches runs on this machine; each has its own cores and devices."""

import glob
import os
import subprocess
import sys
from collections.abc import Sequence

from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.launchers import worker
from vit_jax.sweep.spec import Run

# Number of chips per process -> their topology, as libtpu expects it.
_TPU_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}

# Variables of glibc's malloc for processes on CPUs. Without them, a process
# returns the buffers of each step to the system, which zeroes them again for
# the next step: a fifth of a small model's time (LOG.md). Other C libraries
# ignore these variables.
KEEP_MEMORY = {
  'MALLOC_ARENA_MAX': '1',
  'MALLOC_MMAP_THRESHOLD_': str(2**30),
  'MALLOC_TOP_PAD_': str(2**28),
  'MALLOC_TRIM_THRESHOLD_': str(2**33),
}


class Local:
  """Starts processes that do not outlive this one."""

  interval = 0.1  # Seconds between polls.
  survives = False

  def __init__(self, folders: Folders, parallel: int):
    """Divides the machine into slots.

    Args:
      folders: the sweep's folders.
      parallel: the number of runs at a time; 0: one for each GPU or TPU chip,
        or one on a machine without them.

    Raises:
      ValueError: the accelerators can't be divided by that number.
    """
    kind, devices = accelerators()
    self.slots = parallel or max(len(devices), 1)
    self._environments = environments(kind, devices, self.slots)
    self._defaults = KEEP_MEMORY if kind == 'cpu' else {}
    cores = range(os.cpu_count() or 1)
    if hasattr(os, 'sched_getaffinity'):  # Those that this process may use.
      cores = sorted(os.sched_getaffinity(0))
    self._cores = divide_cores(cores, self.slots)
    self._folders = folders
    self._processes: dict[str, tuple[int, subprocess.Popen]] = {}

  def start(self, run: Run) -> str:
    """Starts a run in a free slot; returns the number of its process."""
    used = {slot for slot, _ in self._processes.values()}
    slot = next(i for i in range(self.slots) if i not in used)
    log = self._folders.log(run.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open('ab') as file:
      process = subprocess.Popen(
        [
          *(sys.executable, '-m', worker.__name__, str(os.getpid())),
          ','.join(map(str, self._cores[slot])),
          *commands.command(run, self._folders),
        ],
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        env=self._defaults | os.environ | self._environments[slot],
        # Only the launcher gets Ctrl-C; it then stops the runs.
        process_group=0,
      )
    handle = str(process.pid)
    self._processes[handle] = slot, process
    return handle

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None during the run."""
    code = self._processes[handle][1].poll()
    if code is not None:
      del self._processes[handle]
    return code

  def stop(self, handle: str) -> None:
    """Asks a run to save and to end; `poll` tells when it has ended."""
    self._processes[handle][1].terminate()


def divide_cores(ids: Sequence[int], slots: int) -> list[list[int]]:
  """Splits cores as evenly as possible; slots share cores if there are too few.

  Neighbouring cores stay together, because they share caches.
  """
  if slots >= len(ids):
    return [[ids[slot % len(ids)]] for slot in range(slots)]
  bounds = [slot * len(ids) // slots for slot in range(slots + 1)]
  return [list(ids[bounds[i] : bounds[i + 1]]) for i in range(slots)]


def accelerators() -> tuple[str, list[str]]:
  """Returns the kind, `gpu`, `tpu` or `cpu`, and the devices for the runs.

  It reads the system's device files, because JAX would reserve the devices.
  """
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return 'cpu', []
  for kind, variable, patterns in (
    ('gpu', 'CUDA_VISIBLE_DEVICES', ['/dev/nvidia[0-9]*']),
    ('tpu', 'TPU_VISIBLE_CHIPS', ['/dev/accel[0-9]*', '/dev/vfio/[0-9]*']),
  ):
    found = [path for pattern in patterns for path in glob.glob(pattern)]
    if found:
      ids = [str(index) for index in range(len(found))]
      named = os.environ.get(variable)
      return kind, ids if named is None else [i for i in named.split(',') if i]
  return 'cpu', []


def environments(
  kind: str, ids: Sequence[str], slots: int
) -> list[dict[str, str]]:
  """Returns each slot's variables that make only its devices visible.

  Raises:
    ValueError: the slots would get different numbers of devices, or a number of
      TPU chips that one process can't have.
  """
  if slots == 1 or not ids:
    return [{} for _ in range(slots)]
  each, rest = divmod(len(ids), slots)
  if rest or (kind == 'tpu' and each not in _TPU_BOUNDS):
    raise ValueError(
      f'--parallel={slots}: the {len(ids)} devices ({kind}) of this machine'
      f' cannot be divided among {slots} runs. Choose another number, or set'
      ' JAX_PLATFORMS=cpu for runs on the CPU.'
    )
  parts = [','.join(ids[i * each : (i + 1) * each]) for i in range(slots)]
  if kind == 'gpu':
    return [{'CUDA_VISIBLE_DEVICES': part} for part in parts]
  return [
    {
      'TPU_VISIBLE_CHIPS': part,
      'TPU_VISIBLE_DEVICES': part,  # Its name in older versions.
      'TPU_CHIPS_PER_PROCESS_BOUNDS': _TPU_BOUNDS[each],
      'TPU_PROCESS_BOUNDS': '1,1,1',
    }
    for part in parts
  ]
