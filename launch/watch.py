"""Keeps a run going: asks for the slice again whenever it was taken away."""

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
  """All that is needed to bring a run up from nothing."""

  target: Target
  request: Request
  archive: str
  lock: str
  # Of the run whose versions are installed; '': those of the lock are.
  recorded: str
  flags: Sequence[str]
  variables: Sequence[str]
  # A new slice after so many failed attempts in a row, at most so often.
  replace_after: int = 5
  replacements: int = 3


def decide(
  queue: str | None,
  node: str,
  health: str,
  found: Sequence[Worker] | None,
  hosts: int,
) -> str:
  """What to do next.

  Args:
    queue: the queued resource's state; None if there is none.
    node: the TPU VM's state; '' if there is none.
    health: of the TPU VM.
    found: what the workers say; None if they were not all reached.
    hosts: how many workers there should be.

  Returns:
    `create`, `recreate`, `wait`, `stalled` (no VM that could get ready by
    itself), `unreachable`, `set_up`, `start`, `restart`, `done`, `stopped` (by
    hand) or `failed`.
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
  # Some workers may end before the others. All that is not over must live.
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
  """Polls, and does what `decide` says, until the run is over.

  Args:
    shell: runs or prints; a dry run prints each command that may come, once.
    job: the slice and the run.
    poll: seconds between looks.
    delete_when_done: give the slice back once the run has ended well.

  Raises:
    RunFailedError: the run ended with an error, was stopped by hand, or the
      slice can't be had.
  """
  if shell.dry_run:
    _print_all(shell, job, delete_when_done)
    return
  patience = Patience(
    job.target,
    replace_after=job.replace_after,
    replacements=job.replacements,
  )
  said, taken_up = '', False
  while True:
    queue, node, found, trouble = _look(shell, job)
    state, health = node.get('state', ''), node.get('health', '')
    action = decide(queue, state, health, found, job.request.wanted.hosts)
    if not taken_up and found and action != 'unreachable':
      taken_up = True
      if any(worker.alive for worker in found):
        print('a run is alive there; it is taken up as it is.')
      else:
        # How an earlier run ended there says nothing of this one.
        action = 'set_up'
    line = f'{queue or "no request"} {state}: {action}'
    if line != said:
      print(time.strftime('%Y-%m-%d %H:%M:%S'), job.target.name, line)
      said = line
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
      return
    try:
      _act(shell, job, action)
      patience.succeeded()
    except shell_lib.CommandError as error:
      patience.failed(action, error)
    time.sleep(poll)


def _look(shell, job):
  """The states of the request, its VM and its workers, and what went wrong."""
  queue = node = None
  try:
    queue = queued_resource.states(shell, job.target).get(job.target.name)
    node = queued_resource.node(shell, job.target)
    found = None
    if queue == 'ACTIVE' and node.get('state') == 'READY':
      found = workers.status(shell, job.target)
    return queue, node, found, 'not all answered'
  except shell_lib.CommandError as error:
    if node is None:
      # gcloud itself failed: no news, which must not look like no request.
      print(f'no news ({error})')
      return 'UNKNOWN', {}, None, ''
    return queue, node, None, str(error)


def _act(shell, job, action) -> None:
  if action == 'recreate':
    shell.run(queued_resource.delete_command(job.target))
  if action in ('create', 'recreate'):
    shell.run(queued_resource.create_command(job.target, job.request))
  if action in ('set_up', 'restart'):
    # All start together, also when only one of them is new.
    workers.stop(shell, job.target, restart=True)
  if action == 'set_up':
    workers.set_up(
      shell,
      job.target,
      job.archive,
      lock=job.lock,
      workdir=job.recorded,
    )
  if action in ('set_up', 'start', 'restart'):
    workers.start(shell, job.target, job.flags, variables=job.variables)


def _finish(shell, job, action, found, delete_when_done) -> None:
  lines = '\n'.join(worker.text for worker in found)
  if action == 'done':
    print(f'the run is over:\n{lines}')
    if delete_when_done:
      shell.run(queued_resource.delete_command(job.target))
    else:
      print('The slice still costs money; delete it when nothing else needs it')
    return
  if action == 'stopped':
    raise RunFailedError(f'the run was stopped by hand:\n{lines}')
  # The others would wait for the one that is gone, again and again.
  try:
    workers.stop(shell, job.target)
  except shell_lib.CommandError as error:  # One may be out of reach.
    print(f'not all workers were stopped: {error}')
  raise RunFailedError(
    f'the run ended with an error:\n{lines}\nIts log: python launch/tpu_vm.py'
    f' logs --name={job.target.name} {" ".join(job.target.place)}\nThe slice'
    ' still costs money.'
  )


def _print_all(shell, job, delete_when_done) -> None:
  shell.say('Asked again and again:')
  _look(shell, job)
  workers.status(shell, job.target)
  shell.say('Without a slice; if it was taken away, deleted first:')
  _act(shell, job, 'recreate')
  shell.say('When the slice is there:')
  _act(shell, job, 'set_up')
  shell.say('When the run is not alive on some worker:')
  _act(shell, job, 'restart')
  if delete_when_done:
    shell.say('At the end:')
    shell.run(queued_resource.delete_command(job.target))
