"""Launches runs as Slurm jobs, each with `launch/slurm.sbatch`.

That script saves before the job's time limit, and requeues the job as long as a
restart can help.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from etils import epath

from vit_jax.runtime import installed
from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run
from vit_jax.workdir import files

_AT_ONCE = 1000  # In effect no limit: Slurm has its own.


class Slurm:
  """Submits jobs, which continue when this process dies.

  It needs no accounting: a job has ended if Slurm's queue lacks it twice in a
  row. Once is not enough, because its last lines may appear late on a shared
  file system. A requeued job is in the queue.
  """

  interval = 15.0  # Seconds between polls.
  survives = True

  def __init__(self, folders: Folders, parallel: int, options: Sequence[str]):
    """Checks the arguments; submits no job.

    Args:
      folders: the sweep's folders, on a file system that all machines share.
      parallel: maximum number of queued and running jobs; 0: no limit.
      options: `NAME=VALUE`, flags of sbatch: partition, time (minutes), nodes,
        ntasks_per_node, gpus_per_node, ...

    Raises:
      ValueError: this is no Slurm cluster, or an option is no `NAME=VALUE`.
    """
    if not shutil.which('sbatch'):
      raise ValueError('--launcher=slurm needs Slurm: there is no sbatch here.')
    self.slots = parallel or _AT_ONCE
    self._folders = folders
    # Some clusters export nothing, and the script needs PYTHON and LAUNCH.
    self._flags = ['--time=1440', '--export=ALL']
    for option in options:
      name, equals, value = option.partition('=')
      if not name or not equals:
        raise ValueError(f'--slurm={option}: expected NAME=VALUE.')
      self._flags.append(f'--{name.replace("_", "-")}={value}')
    self._next = 0.0  # When to ask for the queue again.
    self._absent: dict[str, int] = {}  # Job -> queries that did not list it.

  def start(self, run: Run) -> str:
    """Submits a run; returns the job's number and its log."""
    log = self._folders.log(run.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    script = installed.path('launch/slurm.sbatch')
    words = [
      *('sbatch', '--parsable', f'--output={log}', *self._flags),
      *(script, *commands.main_flags(run, self._folders)),
    ]
    found = subprocess.run(
      words,
      env=os.environ | {'PYTHON': sys.executable, 'LAUNCH': str(script.parent)},
      capture_output=True,
      text=True,
      check=False,
    )
    if found.returncode:
      raise ValueError(f'{run.name}: sbatch failed: {found.stderr.strip()}')
    job = found.stdout.strip().partition(';')[0]
    return f'{job} {log}'

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None until the job ends."""
    job, _, log = handle.partition(' ')
    self._absent.setdefault(job, 0)
    if time.monotonic() >= self._next:
      self._next = time.monotonic() + self.interval / 2
      found = _call('squeue', '--noheader', '--format=%A', '--me')
      if not found.returncode:
        queued = set(found.stdout.split())
        for each, count in self._absent.items():
          self._absent[each] = 0 if each in queued else count + 1
    if self._absent[job] < 2:
      return None
    del self._absent[job]
    # There is no log if the job was cancelled before it started.
    text = files.content(epath.Path(log)).decode(errors='replace')
    said = re.findall(rf'slurm\.sbatch: .*code=(\d+) job={job}\b', text)
    # Without a last line, its node was lost or the job was killed.
    return int(said[-1]) if said else -signal.SIGKILL

  def stop(self, handle: str) -> None:
    """Cancels a job; Slurm gives it KillWait seconds to save."""
    _call('scancel', handle.partition(' ')[0])


def _call(*words: str) -> subprocess.CompletedProcess:
  return subprocess.run(words, capture_output=True, text=True, check=False)
