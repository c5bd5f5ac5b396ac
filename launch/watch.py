"""Keeps a run going: requests a new slice whenever the slice was taken away."""

import time
from collections.abc import Callable, Sequence

from vit_jax.launch import workers
from vit_jax.launch.shell import CommandError, Shell
from vit_jax.launch.slices import Target
from vit_jax.launch.workers import Worker

# Limit of actions in a row without a run that was seen alive after them.
_PATIENCE = 10
# The exit code of gcloud for flags that it does not know or that exclude each
# other.
_WRONG_FLAGS = 2


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
    `unreachable`, `set_up`, `restart`, `done`, `stopped` (by the user) or
    `failed`.
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
  # Some workers may end before the others; all others must be alive.
  if all(worker.alive or worker in over for worker in found):
    return 'wait'
  return 'restart'


def watch(
  shell: Shell,
  target: Target,
  hosts: int,
  act: Callable[[str], None],
  *,
  poll: float,
  delete_when_done: bool,
) -> None:
  """Polls and acts until the run has finished.

  Args:
    shell: runs the commands; a dry run prints the commands of each action,
      and does not poll.
    target: the slice.
    hosts: its number of machines.
    act: does what `decide` returned: `create`, `recreate`, `set_up` or
      `restart`; also `delete`; nothing for the other actions.
    poll: seconds between polls.
    delete_when_done: whether to delete the slice after a run without an error.

  Raises:
    ValueError: the run ended with an error, the user stopped it, or a run was
      not seen alive after many actions; the message says what to do.
    CommandError: gcloud refuses the flags that request the slice.
  """
  if shell.dry_run:
    _print_all(shell, target, act, delete_when_done)
    return
  tries, reached, printed = 0, False, ''
  while True:
    queue, node, health, found, trouble = _look(shell, target, hosts)
    action = decide(queue, node, health, found, hosts)
    alive = any(worker.alive for worker in found or ())
    # The result of an earlier run on the slice does not matter here.
    if found and action != 'unreachable' and not reached:
      action = action if alive else 'set_up'
      reached = True
    line = f'{queue or "no request"} {node}: {action}'
    if line != printed:
      print(time.strftime('%Y-%m-%d %H:%M:%S'), target.name, line, trouble)
      printed = line
    if action in ('done', 'stopped', 'failed'):
      _finish(shell, target, action, found)
      if delete_when_done:
        _delete(shell, target, act, poll)
      return
    if alive:
      tries = 0
    # A run on a slice that was reached before does not need the connection.
    elif action != 'wait' and not (action == 'unreachable' and reached):
      tries += 1
    if tries > _PATIENCE:
      raise ValueError(
        f'{_PATIENCE} actions in a row led to no run that is alive. The last:'
        f' {line} {health} {trouble}\nIf the machines cannot be reached, a'
        " firewall rule of the slice's network must allow SSH (TCP port 22),"
        ' and machines without external addresses need --internal_ip and a'
        ' watch that runs inside the network. The slice, if it exists, still'
        f' costs money. Delete it:\n  {target.own("delete")}'
      )
    if action in ('create', 'recreate'):
      reached = False
    try:
      act(action)
    except CommandError as error:
      if action in ('create', 'recreate') and error.code == _WRONG_FLAGS:
        raise
      print(f'{action} failed ({error}); trying again.')
    time.sleep(poll)


def _look(shell, target, hosts):
  """Returns the states of request, VM, its health and workers, and a trouble.

  The trouble is why workers were not reached; else ''.
  """
  try:
    queue, node, health = target.states(shell)
  except CommandError as error:
    # This must not look as if there were no request.
    return 'UNKNOWN', '', '', None, f'({error})'
  if (queue, node) != ('ACTIVE', 'READY'):
    return queue, node, health, None, ''
  try:
    found = workers.status(shell, target)
  except CommandError as error:
    return queue, node, health, None, f'({error})'
  lost = '(not all workers answered)' if len(found) < hosts else ''
  return queue, node, health, found, lost


def _finish(shell, target, action, found) -> None:
  lines = '\n'.join(worker.text for worker in found)
  if action == 'done':
    print(f'the run has finished:\n{lines}\nA slice that is left costs money.')
    return
  if action == 'stopped':
    raise ValueError(f'the run was stopped by hand:\n{lines}')
  # The other workers would restart and wait for the ended one in vain.
  try:
    workers.stop(shell, target)
  except CommandError as error:
    print(f'not all workers were stopped: {error}')
  raise ValueError(
    f'the run ended with an error:\n{lines}\nIts log: {target.own("logs")}\n'
    'The slice still costs money.'
  )


def _delete(shell, target, act, poll) -> None:
  """Deletes the slice; tries again, because a slice that is left costs money.

  Raises:
    ValueError: each attempt failed.
  """
  for _ in range(_PATIENCE):
    try:
      # An attempt that seemed to fail may have deleted it.
      if target.states(shell)[0] is not None:
        act('delete')
      return
    except CommandError as error:
      print(f'the deletion failed ({error}); trying again.')
      time.sleep(poll)
  raise ValueError(f'the slice is left. Delete it:\n  {target.own("delete")}')


def _print_all(shell, target, act, delete_when_done) -> None:
  shell.say('At each poll:')
  target.states(shell)
  workers.status(shell, target)
  shell.say('If there is no slice (one that was taken away is deleted first):')
  act('recreate')
  shell.say('When the slice is ready:')
  act('set_up')
  shell.say('If the run is not alive on some worker:')
  act('restart')
  if delete_when_done:
    shell.say('At the end:')
    act('delete')
