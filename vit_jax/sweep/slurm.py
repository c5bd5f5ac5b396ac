"""Launches runs as Slurm jobs, through submitit (the extra `slurm`)."""

import ast
import getpass
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from vit_jax.runtime import installed
from vit_jax.sweep import commands
from vit_jax.sweep.commands import Folders
from vit_jax.sweep.spec import Run

# submitit's default time limit is only five minutes.
_DEFAULTS = {'time': 24 * 60, 'signal_delay_s': 300}
_AT_ONCE = 1000  # In effect no limit: Slurm has its own.


class Slurm:
  """Submits jobs, which continue when this process dies.

  Slurm's accounting (`sacct`) tells whether a job was cancelled or lost. On a
  cluster without accounting, such a job is missing from Slurm's queue.
  """

  interval = 10.0  # Seconds between polls.
  survives = True

  def __init__(
    self,
    folders: Folders,
    parallel: int,
    options: Sequence[str] = (),
    *,
    command: Callable[[Run, Folders], Sequence[str]] = commands.command,
    executor: str = 'SlurmExecutor',
  ):
    """Configures submitit; submits no job.

    Args:
      folders: the sweep's folders, on a file system that all machines share.
      parallel: maximum number of queued and running jobs; 0: no limit.
      options: `NAME=VALUE` arguments of
        `submitit.SlurmExecutor.update_parameters`: partition, time (minutes),
        nodes, ntasks_per_node, gpus_per_node, ...
      command: makes the command of a run.
      executor: the name of submitit's executor class.

    Raises:
      ValueError: submitit is not installed, this is no Slurm cluster, or an
        option is wrong.
    """
    installed.require('submitit', extra='slurm', what='--launcher=slurm')
    import submitit

    self.slots = parallel or _AT_ONCE
    self._submitit = submitit
    self._folders = folders
    self._command = command
    parameters = (_DEFAULTS if executor == 'SlurmExecutor' else {}) | parse(
      options
    )
    self._tasks = parameters.get('nodes', 1) * parameters.get(
      'ntasks_per_node', 1
    )
    try:
      # submitit keeps the files and logs of its jobs in this folder.
      self._executor = getattr(submitit, executor)(folders.local / 'slurm')
      self._executor.update_parameters(**parameters)
    except (RuntimeError, TypeError) as error:
      raise ValueError(f'--launcher=slurm: {error}') from error
    self._jobs = {}
    self._queue = Queue() if executor == 'SlurmExecutor' else None

  def start(self, run: Run) -> str:
    """Submits a run; returns the job's number."""
    log = self._folders.log(run.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    job = self._executor.submit(
      Command(list(self._command(run, self._folders)), os.fspath(log))
    )
    self._jobs[job.job_id] = job
    return job.job_id

  def poll(self, handle: str) -> int | None:
    """Returns the exit code, negative for a signal; None until the job ends."""
    job = self._job(handle)
    if not job.done():
      lost = self._queue and self._queue.lost(handle, self._jobs)
      return -signal.SIGKILL if lost else None
    try:
      codes = job.results()
    except self._submitit.core.utils.FailedJobError:
      return 1
    except self._submitit.core.utils.UncompletedJobError:
      return -signal.SIGKILL  # Cancelled, out of time, or its node was lost.
    # When one process ends with 1, the others end with other codes.
    return 1 if 1 in codes else next(filter(None, codes), 0)

  def stop(self, handle: str) -> None:
    """Cancels a job; Slurm gives it KillWait seconds to save."""
    self._job(handle).cancel(check=False)

  def _job(self, handle):
    if handle not in self._jobs:  # An earlier launcher submitted the job.
      self._jobs[handle] = self._executor.job_class(
        self._executor.folder, handle, list(range(self._tasks))
      )
    return self._jobs[handle]


class Queue:
  """Finds the jobs that have disappeared from Slurm's queue.

  A job is lost if two queries in a row do not list it. One query is not enough,
  because the result of an ended job may appear late on a shared file system. A
  requeued job is in the queue.
  """

  def __init__(self, seconds: float = 60.0):
    self._seconds = seconds  # Seconds between queries.
    self._next = 0.0
    # Job -> queries in a row that did not list it.
    self._absent: dict[str, int] = {}

  def lost(self, handle: str, handles: Iterable[str]) -> bool:
    """Returns whether the job `handle`, one of `handles`, is lost."""
    if time.monotonic() >= self._next:
      self._next = time.monotonic() + self._seconds
      queued = _queued()
      if queued is not None:
        self._absent = {
          job: 0 if job in queued else self._absent.get(job, 0) + 1
          for job in handles
        }
    return self._absent.get(handle, 0) > 1


def _queued() -> set[str] | None:
  """Returns the numbers of this user's jobs; None if Slurm does not answer."""
  found = subprocess.run(
    ['squeue', '--noheader', '--format=%A', f'--user={getpass.getuser()}'],
    capture_output=True,
    text=True,
    check=False,
  )
  return None if found.returncode else set(found.stdout.split())


class Command:
  """A job's function: runs a command, which saves before the time limit."""

  def __init__(self, command: list[str], log: str):
    self._command = command
    self._log = log
    self._pid = 0

  def __call__(self) -> int:
    """Runs the command; returns the exit code, negative for a signal."""
    # Slurm sends its warning, SIGUSR2, to all processes, but the run handles
    # only SIGTERM. So the run starts with SIGUSR2 ignored.
    known = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    with open(self._log, 'ab') as file:
      process = subprocess.Popen(
        self._command, stdout=file, stderr=subprocess.STDOUT
      )
    self._pid = process.pid
    signal.signal(signal.SIGUSR2, known)
    # Do not use process.wait, which holds a lock while it waits: submitit may
    # call `checkpoint` from a signal handler meanwhile.
    process.returncode = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
    return process.returncode

  def checkpoint(self):
    """Saves, and asks submitit to requeue the job.

    submitit calls this before the job's time limit.
    """
    import submitit

    os.kill(self._pid, signal.SIGTERM)
    os.waitpid(self._pid, 0)
    return submitit.helpers.DelayedSubmission(Command(self._command, self._log))


def parse(options: Sequence[str]) -> dict[str, object]:
  """Parses `NAME=VALUE` options; a value may be a Python number or list.

  Raises:
    ValueError: an option is no `NAME=VALUE`.
  """
  values: dict[str, object] = {}
  for option in options:
    name, equals, text = option.partition('=')
    if not name or not equals:
      raise ValueError(f'--slurm={option}: expected NAME=VALUE.')
    try:
      values[name] = ast.literal_eval(text)
    except (ValueError, SyntaxError):
      values[name] = text
  return values
