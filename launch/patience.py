"""Decides when `watch` gives up or replaces a slice after repeated failures."""

from collections.abc import Sequence

from vit_jax.launch.queued_resource import Target
from vit_jax.launch.workers import Worker

# Limit of requests in a row that failed before they were granted.
_FAILED_REQUESTS = 5
# Limit of polls in a row in which the workers of a ready VM could not be
# reached, or no VM could become ready by itself.
_POLLS = 10
# Limit of new slices in a row on which no run was seen alive.
_RECREATIONS = 10
# Limit of actions in a row that failed.
_TROUBLES = 10
# Health states in which the TPU service itself reports broken machines. In any
# other state, the cause may be the network between here and the machines.
_BROKEN = ('TIMEOUT', 'UNHEALTHY_TENSORFLOW')


class RunFailedError(RuntimeError):
  """The run ended for a reason that a restart would not fix."""


class Patience:
  """Counts polls and actions without success, and ends `watch` at a limit."""

  def __init__(
    self, target: Target, *, replace_after: int = 5, replacements: int = 3
  ):
    """Starts with all counts at zero.

    Args:
      target: the slice.
      replace_after: failed attempts in a row after which a slice is replaced.
      replacements: maximum number of such replacements.
    """
    self._target = target
    self._replace_after = replace_after
    self._replacements = replacements
    self._replaced = 0
    self._failures = None  # The workers' highest count at the last poll.
    self._failed_requests = 0
    self._unreachable = 0
    self._stalled = 0
    self._recreations = 0
    self._troubles = 0
    self._reached = False

  def judge(
    self,
    action: str,
    *,
    queue: str | None,
    node: str,
    health: str,
    found: Sequence[Worker] | None,
    trouble: str,
  ) -> str:
    """Checks a decision of `watch.decide` against the counts.

    Args:
      action: the decision.
      queue: the queued resource's state; None if there is none.
      node: the TPU VM's state; '' if there is none.
      health: the TPU VM's health.
      found: the workers' states; None if not all workers were reached.
      trouble: why workers were not reached.

    Returns:
      The action, or `recreate` if the machines stay broken or the run failed
      repeatedly on this slice.

    Raises:
      RunFailedError: a limit is reached; the message says what to do.
    """
    if queue == 'ACTIVE':
      self._failed_requests = 0
    self._failed_requests += queue == 'FAILED'
    if self._failed_requests >= _FAILED_REQUESTS:
      raise RunFailedError(
        f'{self._failed_requests} requests in a row failed. Why:\n '
        f' {self._gcloud("queued-resources describe")}'
      )
    self._reached = self._reached or bool(found)
    if any(worker.alive for worker in found or ()):
      self._recreations = 0
    self._stalled = self._stalled + 1 if action == 'stalled' else 0
    if self._stalled >= _POLLS:
      self._end_stalled(node)
    self._unreachable = self._unreachable + 1 if action == 'unreachable' else 0
    if self._unreachable >= _POLLS:
      action = self._not_reached(health, trouble)
    if found and action in ('wait', 'restart', 'failed'):
      action = self._judge_slice(action, found)
    if action == 'recreate':
      self._reached, self._unreachable = False, 0
      self._recreations += 1
    if self._recreations > _RECREATIONS:
      raise RunFailedError(
        f'{_RECREATIONS} new slices in a row were lost before a run was seen'
        f' alive on them; the last is {queue} {node} {health}. It may still'
        f' cost money:\n  {self._gcloud("queued-resources describe")}'
      )
    return action

  def succeeded(self) -> None:
    """Notes that an action succeeded."""
    self._troubles = 0

  def failed(self, action: str, error: Exception) -> None:
    """Notes that an action failed; a later attempt often succeeds.

    Raises:
      RunFailedError: too many actions in a row failed.
    """
    self._troubles += 1
    if self._troubles >= _TROUBLES:
      raise RunFailedError(
        f'{action} failed {self._troubles} times in a row: {error}\nThe slice,'
        ' if it exists, still costs money.'
      ) from error
    print(f'{action} failed ({error}); trying again.')

  def _not_reached(self, health, trouble) -> str:
    polls = self._unreachable
    if health in _BROKEN:
      print(
        f'the workers were not reached in {polls} polls and the slice is'
        f' {health}: requesting a new slice.'
      )
      return 'recreate'
    if not self._reached:
      raise RunFailedError(
        f'the workers of {self._target.name} could not be reached in {polls}'
        f' polls ({trouble}), although the slice is ready'
        f' ({health or "health unknown"}). Most likely the network blocks SSH:'
        " a firewall rule of the slice's network must allow SSH (TCP port 22),"
        ' and machines without external addresses need --internal_ip and a'
        ' watch that runs inside the network. Try:\n '
        f' {self._gcloud("tpu-vm ssh")} --worker=all --command=hostname'
        f'{" --internal-ip" if self._target.internal_ip else ""}\n'
        'Nothing was deleted: a run on the slice continues, and the slice still'
        ' costs money.'
      )
    if polls % _POLLS == 0:
      print(
        f'the workers were not reached in {polls} polls ({trouble}). The slice'
        ' is ready, so it is kept, and a run on it continues. Is the network'
        ' here up?'
      )
    return 'unreachable'

  def _judge_slice(self, action, found) -> str:
    """Returns `recreate` if the run fails repeatedly on this slice."""
    over = [w for w in found if w.state in ('ended', 'gave_up') and w.code]
    # A run that ended with an error would fail the same way on a new slice.
    if any(worker.state == 'ended' for worker in over):
      return action
    failures = max(worker.failures for worker in found)
    before, self._failures = self._failures, failures
    # Do not count failures from before this watch: the present attempt may
    # succeed.
    more = before is not None and failures > before
    if not over and not (more and failures >= self._replace_after):
      return action
    if self._replaced >= self._replacements:
      return action
    self._replaced += 1
    codes = sorted({w.code for w in found if w.code is not None})
    print(
      f'{failures} attempts in a row failed on this slice (exit codes {codes};'
      ' logs in WORKDIR/launch/logs): requesting a new slice, replacement'
      f' {self._replaced} of at most {self._replacements}.'
    )
    return 'recreate'

  def _end_stalled(self, node) -> None:
    name = self._target.name
    if node:
      problem = f'the TPU VM {name} is {node} and does not start by itself'
      advice = f'Start it:\n  {self._gcloud("tpu-vm start")}\nor delete it:'
    else:
      problem = (
        f'the queued resource {name} is ACTIVE, but there is no TPU VM {name};'
        ' perhaps somebody deleted the VM'
      )
      advice = 'Delete the queued resource:'
    raise RunFailedError(
      f'{problem}. {advice}\n  {self._target.delete}\nThen start watch again.'
    )

  def _gcloud(self, command) -> str:
    place = ' '.join(self._target.place)
    return f'gcloud compute tpus {command} {self._target.name} {place}'
