"""How long `watch` puts up with what does not get better."""

from collections.abc import Sequence

from vit_jax.launch.queued_resource import Target
from vit_jax.launch.workers import Worker

# Requests in a row that failed before they were granted.
_FAILED_REQUESTS = 5
# Looks in a row in which the workers of a ready VM could not be reached, or
# there was no VM that could get ready by itself.
_LOOKS = 10
# New slices in a row on none of which a run was seen alive.
_RECREATIONS = 10
# Actions in a row that did not succeed.
_TROUBLES = 10
# What the TPU service itself says of machines that do not work. All else that
# keeps us from reaching them may lie between here and there.
_BROKEN = ('TIMEOUT', 'UNHEALTHY_TENSORFLOW')


class RunFailedError(RuntimeError):
  """The run ended for a reason that starting it again would not mend."""


class Patience:
  """Counts looks and actions without success, and ends the watch in time."""

  def __init__(
    self, target: Target, *, replace_after: int = 5, replacements: int = 3
  ):
    """Has seen nothing yet.

    Args:
      target: the slice.
      replace_after: failed attempts in a row after which a slice is replaced.
      replacements: at most so many of these.
    """
    self._target = target
    self._replace_after = replace_after
    self._replacements = replacements
    self._replaced = 0
    self._failures = None  # Seen last.
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
    """Looks at what `watch.decide` wants to do, given what it was given.

    Args:
      action: the decision.
      queue: the queued resource's state; None if there is none.
      node: the TPU VM's state; '' if there is none.
      health: of the TPU VM.
      found: what the workers say; None if they were not all reached.
      trouble: why they were not.

    Returns:
      The action; `recreate` where broken machines were waited for, or the run
      failed again and again.

    Raises:
      RunFailedError: it was tried often enough; says what to do.
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
    if self._stalled >= _LOOKS:
      self._end_stalled(node)
    self._unreachable = self._unreachable + 1 if action == 'unreachable' else 0
    if self._unreachable >= _LOOKS:
      action = self._not_reached(health, trouble)
    if found and action in ('wait', 'restart', 'failed'):
      action = self._judge_slice(action, found)
    if action == 'recreate':
      self._reached, self._unreachable = False, 0
      self._recreations += 1
    if self._recreations > _RECREATIONS:
      raise RunFailedError(
        f'{_RECREATIONS} new slices in a row were lost before a run was seen'
        f' alive on them; the last is {queue} {node} {health}. What is there'
        f' may still cost money:\n  {self._gcloud("queued-resources describe")}'
      )
    return action

  def succeeded(self) -> None:
    """An action succeeded."""
    self._troubles = 0

  def failed(self, action: str, error: Exception) -> None:
    """An action failed, which often mends itself: machines come and go.

    Raises:
      RunFailedError: too often in a row.
    """
    self._troubles += 1
    if self._troubles >= _TROUBLES:
      raise RunFailedError(
        f'{action} failed {self._troubles} times in a row: {error}\nThe slice,'
        ' if there is one, still costs money.'
      ) from error
    print(f'{action} did not succeed ({error}); trying again.')

  def _not_reached(self, health, trouble) -> str:
    looks = self._unreachable
    if health in _BROKEN:
      print(f'not reached for {looks} looks, {health}; a new slice.')
      return 'recreate'
    if not self._reached:
      raise RunFailedError(
        f'the workers of {self._target.name} could not be reached in {looks}'
        f' looks ({trouble}), though the slice is ready'
        f' ({health or "health unknown"}). Most likely the way there is closed:'
        " a firewall rule of the slice's network must let SSH (TCP port 22)"
        ' in, and machines without external addresses need --internal_ip and a'
        ' place inside the network to watch from. Try:\n '
        f' {self._gcloud("tpu-vm ssh")} --worker=all --command=hostname'
        f'{" --internal-ip" if self._target.internal_ip else ""}\n'
        'Nothing was deleted: a run on it goes on, and it still costs money.'
      )
    if looks % _LOOKS == 0:
      print(
        f'not reached for {looks} looks ({trouble}). The slice is ready, so it'
        ' is kept; a run on it goes on by itself. Is the network here up?'
      )
    return 'unreachable'

  def _judge_slice(self, action, found) -> str:
    """`recreate` if the run fails again and again where it is."""
    # After any other error a new slice would see the same.
    over = [w for w in found if w.state in ('ended', 'gave_up') and w.code]
    if any(worker.state == 'ended' for worker in over):
      return action
    failures = max(worker.failures for worker in found)
    before, self._failures = self._failures, failures
    # An attempt that is alive since before this watch may well go on.
    more = before is not None and failures > before
    if not over and not (more and failures >= self._replace_after):
      return action
    if self._replaced >= self._replacements:
      return action
    self._replaced += 1
    codes = sorted({w.code for w in found if w.code is not None})
    print(
      f'{failures} attempts in a row failed on this slice (exit codes {codes};'
      f' logs in WORKDIR/launch/logs): a new one, {self._replaced} of at most'
      f' {self._replacements}.'
    )
    return 'recreate'

  def _end_stalled(self, node) -> None:
    name = self._target.name
    delete = (
      f'python launch/tpu_vm.py delete --name={name}'
      f' {" ".join(self._target.place)}'
    )
    if node:
      problem = f'the TPU VM {name} is {node}, and does not start by itself'
      advice = f'Start it:\n  {self._gcloud("tpu-vm start")}\nor delete it:'
    else:
      problem = (
        f'the queued resource {name} is ACTIVE, but there is no TPU VM {name};'
        ' perhaps it was deleted by hand'
      )
      advice = 'Delete what is left:'
    raise RunFailedError(
      f'{problem}. {advice}\n  {delete}\nThen start watch again.'
    )

  def _gcloud(self, command) -> str:
    place = ' '.join(self._target.place)
    return f'gcloud compute tpus {command} {self._target.name} {place}'
