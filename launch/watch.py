"""Keeps a run going: requests a new slice whenever the slice was taken away."""

import dataclasses
import time
from collections.abc import Sequence

from vit_jax.launch import queued_resource, workers
from vit_jax.launch import shell as shell_lib
from vit_jax.launch.patience import Patience, RunFailedError
from vit_jax.launch.queued_resource import Request, Target
from vit_jax.launch.workers import Worker


@dataclasses.dataclass(frozen=True)
class Job:
  """All settings that are needed to start a run from nothing."""

  target: Target
  request: Request
  archive: str
  lock: str
  # Work directory of the run whose recorded versions are installed; '': the
  # versions of the lock file are installed.
  versions_workdir: str
  flags: Sequence[str]
  variables: Sequence[str]
  # Failed attempts in a row after which the slice is replaced, and the maximum
  # number of such replacements.
  replace_after: int = 5
  replacements: int = 3


def decide(
  queue: str | None,
  node: str,
  health: str,
  found: Sequence[Worker] | None,
  hosts: int,
) -> str:
  """Returns the next action.

  Args:
    queue: the queued resource's state; None if there is none.
    node: the TPU VM's state; '' if there is none.
    health: the TPU VM's health.
    found: the workers' states; None if not all workers were reached.
    hosts: the number of workers of the slice.

  Returns:
    `create`, `recreate`, `wait`, `stalled` (no VM can become ready by itself),
    `unreachable`, `set_up`, `start`, `restart`, `done`, `stopped` (by the user)
    or `failed`.
  """
  if queue is None:
    return 'create'
  if queue in ('SUSPENDED', 'FAILED'):
    return 'recreate'
  if queue != 'ACTIVE':
    return 'wait'
  if node in ('PREEMPTED', 'TERMINATED'):
    return 'recreate'
  if node in ('', 'STOPPED'):
    return 'stalled'
  if node != 'READY' or health == 'UNHEALTHY_MAINTENANCE':
    return 'wait'
  if found is None or len(found) < hosts:
    return 'unreachable'
  states = {worker.state for worker in found}
  over = [worker for worker in found if worker.state in ('ended', 'gave_up')]
  if any(worker.code != 0 for worker in over):
    return 'failed'
  if len(over) == len(found):
    return 'done'
  if 'stopped' in states:
    return 'stopped'
  if 'new' in states:
    return 'set_up'
  if states == {'idle'}:
    return 'start'
  # Some workers may end before the others; all others must be alive.
  if all(worker.alive or worker in over for worker in found):
    return 'wait'
  return 'restart'


def watch(
  shell: shell_lib.Shell,
  job: Job,
  *,
  poll: float,
  delete_when_done: bool,
) -> None:
  """Polls and acts until the run has finished.

  `decide` chooses the action. After too many failures in a row, `Patience`
  changes the action to `recreate` or raises RunFailedError.

  Args:
    shell: runs the commands; a dry run prints the commands of each action,
      and does not poll.
    job: the slice and the run.
    poll: seconds between polls.
    delete_when_done: whether to delete the slice after a run without an error.

  Raises:
    RunFailedError: the run ended with an error, the user stopped it, there is
      no slice to run it on, or the slice does not answer or obey.
  """
  if shell.dry_run:
    _print_all(shell, job, delete_when_done)
    return
  patience = Patience(
    job.target,
    replace_after=job.replace_after,
    replacements=job.replacements,
  )
  printed_line, workers_seen = '', False
  while True:
    queue, node, found, trouble = _look(shell, job)
    state, health = node.get('state', ''), node.get('health', '')
    action = decide(queue, state, health, found, job.request.wanted.hosts)
    if not workers_seen and found and action != 'unreachable':
      workers_seen = True
      if any(worker.alive for worker in found):
        print('a run is alive on the slice: keeping its set-up.')
      else:
        # The result of an earlier run on the slice does not matter here.
        action = 'set_up'
    line = f'{queue or "no request"} {state}: {action}'
    if line != printed_line:
      print(time.strftime('%Y-%m-%d %H:%M:%S'), job.target.name, line)
      printed_line = line
    action = patience.judge(
      action,
      queue=queue,
      node=state,
      health=health,
      found=found,
      trouble=trouble,
    )
    if action in ('done', 'stopped', 'failed'):
      _finish(shell, job, action, found, delete_when_done)
      while delete_when_done and not _try(shell, job, 'delete', patience):
        time.sleep(poll)
      return
    _try(shell, job, action, patience)
    time.sleep(poll)


def _try(shell, job, action, patience) -> bool:
  try:
    _act(shell, job, action)
    patience.succeeded()
    return True
  except shell_lib.CommandError as error:
    patience.failed(action, error)
    return False


def _look(shell, job):
  """Returns the states of the request, the VM and the workers, and a reason.

  The reason is what to report if workers could not be reached.
  """
  queue = node = None
  try:
    queue = queued_resource.states(shell, job.target).get(job.target.name)
    node = queued_resource.node(shell, job.target)
    found = None
    if queue == 'ACTIVE' and node.get('state') == 'READY':
      found = workers.status(shell, job.target)
    return queue, node, found, 'not all workers answered'
  except shell_lib.CommandError as error:
    if node is None:
      # gcloud itself failed. This must not look as if there were no request.
      print(f'the state of the slice is unknown ({error})')
      return 'UNKNOWN', {}, None, ''
    return queue, node, None, str(error)


def _act(shell, job, action) -> None:
  if action in ('delete', 'recreate'):
    queued_resource.delete(shell, job.target)
  if action in ('create', 'recreate'):
    shell.run(queued_resource.create_command(job.target, job.request))
  if action in ('set_up', 'restart'):
    # All workers start together, even if only one of them is new.
    workers.stop(shell, job.target, restart=True)
  if action == 'set_up':
    workers.set_up(
      shell,
      job.target,
      job.archive,
      lock=job.lock,
      workdir=job.versions_workdir,
    )
  if action in ('set_up', 'start', 'restart'):
    workers.start(shell, job.target, job.flags, variables=job.variables)


def _finish(shell, job, action, found, delete_when_done) -> None:
  lines = '\n'.join(worker.text for worker in found)
  if action == 'done':
    print(f'the run has finished:\n{lines}')
    if not delete_when_done:
      print(
        'The slice still costs money; delete it when nothing else needs it.'
      )
    return
  if action == 'stopped':
    raise RunFailedError(f'the run was stopped by hand:\n{lines}')
  # The other workers would restart and wait for the ended one in vain.
  try:
    workers.stop(shell, job.target)
  except shell_lib.CommandError as error:
    print(f'not all workers were stopped: {error}')
  raise RunFailedError(
    f'the run ended with an error:\n{lines}\nIts log: python launch/tpu_vm.py'
    f' logs --name={job.target.name} {" ".join(job.target.place)}\nThe slice'
    ' still costs money.'
  )


def _print_all(shell, job, delete_when_done) -> None:
  shell.say('At each poll:')
  _look(shell, job)
  workers.status(shell, job.target)
  shell.say('If there is no slice (one that was taken away is deleted first):')
  _act(shell, job, 'recreate')
  shell.say('When the slice is ready:')
  _act(shell, job, 'set_up')
  shell.say('If the run is not alive on some worker:')
  _act(shell, job, 'restart')
  if delete_when_done:
    shell.say('At the end:')
    _act(shell, job, 'delete')
