"""Who takes part in a run, and the verdict on how it goes on. No sockets.

A process that fails ends the others too, but not at once: the same error may
be about to come from them (then each ends with its own), and a collective that
raised in one process mostly means that another one died.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PROTOCOL = 1
# Seconds.
GRACE = 3.0  # From a process's error to the verdict.
SETTLE = 0.5  # Hosts that die together are named together.
_CONFLICT = 5.0  # From a conflict to its verdict: late-comers hear it too.


class MisfitError(Exception):
  """A process of another run or program came, or one started wrongly."""


# What a process is told: {'lost': text}, {'own': True} or {'end': orderly}.
Verdict = Mapping[int, Mapping[str, Any]]


@dataclasses.dataclass
class Peer:
  """One process of the run, as far as process 0 knows."""

  process_id: int
  host: str
  pid: int
  facts: Mapping[str, Any]  # What must be the same in all processes.
  seen: float  # When it last gave a sign of life.
  state: str = 'working'  # Or done, left (on purpose), failed.
  since: float = 0.0  # When it came to this state.
  text: str = ''  # The error with which it left or failed.
  gone: str = ''  # Why nothing more comes from it.

  def __str__(self):
    return f'process {self.process_id} on {self.host} (pid {self.pid})'


class Roster:
  """The processes of a run, before the start and until its end."""

  def __init__(
    self,
    num_processes: int,
    hosts: Sequence[str],
    start_timeout: float,
    lost_timeout: float,
    now: float,
  ):
    """Args as in `connected`; `hosts` as in `Place`; all times in seconds."""
    self.peers: dict[int, Peer] = {}
    self.started = False
    self._num_processes = num_processes
    self._hosts = hosts
    self._start_timeout = start_timeout
    self._lost_timeout = lost_timeout
    self._begun = now
    self._conflict: tuple[float, str] | None = None
    self._misfits: dict[int, str] = {}
    self._last_came = now
    self._lost_since: float | None = None

  def enter(
    self,
    now: float,
    *,
    protocol: int,
    process_id: int,
    num_processes: int,
    host: str,
    pid: int,
    facts: Mapping[str, Any],
  ) -> Peer | None:
    """Takes in a process; None, and a conflict, if it does not fit.

    Raises:
      MisfitError: it is not of this run, or was started wrongly. Told to it
        alone, and a conflict only if nobody else comes in its place.
      TypeError, ValueError: that is no introduction of a process.
    """
    peer = Peer(int(process_id), str(host), int(pid), dict(facts), now)
    old = self.peers.get(peer.process_id)
    conflict = ''
    if misfit := self._misfit(peer, protocol, int(num_processes)):
      self._misfits[peer.process_id] = misfit
      self._last_came = now
      raise MisfitError(misfit)
    if not 0 <= peer.process_id < num_processes:
      raise ValueError(process_id)
    if old and (old.host, old.pid) != (peer.host, peer.pid):
      conflict = (
        f'The same process id was given to two: {old} and {peer}. Each needs'
        ' its own, unless an earlier run has not ended.'
      )
    else:
      conflict = self._differs(peer)
    if conflict:
      self._conflict = self._conflict or (now, conflict)
      return None
    self.peers[peer.process_id] = peer
    self._last_came = now
    return peer

  def _misfit(self, peer: Peer, protocol: int, num_processes: int) -> str:
    if protocol != PROTOCOL:
      return f'Another version of this program runs as {peer}.'
    if num_processes != self._num_processes:
      return (
        f'The number of processes is {num_processes} to {peer}, and'
        f' {self._num_processes} to process 0. Give all the same, and each run'
        ' its own coordinator_address.'
      )
    return ''

  def _differs(self, peer: Peer) -> str:
    """Process 0 is the measure; it may come after others."""
    if peer.process_id == 0:
      first, others = peer, list(self.peers.values())
    else:
      first, others = self.peers.get(0), [peer]
    for other in others:
      if first and first.facts != other.facts:
        return _difference(first, other)
    return ''

  def pause(self, seconds: float) -> None:
    """Process 0 itself stood still, and could hear nobody."""
    self._begun += seconds
    for peer in self.peers.values():
      peer.seen += seconds

  def conflict(self, now: float) -> str:
    """Why the processes do not fit together, once it is time to say so."""
    if self._conflict:
      since, text = self._conflict
      waited = now - since > _CONFLICT or self._late(now)
      return text if waited or self.complete() else ''
    # Whoever does not fit is of another run, unless only its place is empty.
    absent = self._absent()
    if absent and absent <= self._misfits.keys():
      waited = now - self._last_came > _CONFLICT or self._late(now)
      return self._misfits[min(absent)] if waited else ''
    return ''

  def complete(self) -> bool:
    return len(self.peers) == self._num_processes

  def start(self, now: float) -> None:
    self.started = True
    for peer in self.peers.values():
      peer.seen = now

  def verdict(self, now: float) -> Verdict | None:
    """What each process is told when the run ends; None while it goes on."""
    if self.started:
      return self._judge(now)
    if self._late(now):
      return self._all(lost=self._missing())
    return None

  def _late(self, now: float) -> bool:
    return now - self._begun > self._start_timeout

  def _all(self, **told: Any) -> Verdict:
    return dict.fromkeys(self.peers, told)

  def _judge(self, now: float) -> Verdict | None:
    peers = [self.peers[i] for i in sorted(self.peers)]
    for peer in peers:
      if not peer.gone and now - peer.seen > self._lost_timeout:
        peer.gone = f'no sign of life for {self._lost_timeout:g} s'
    working = [p for p in peers if p.state == 'working' and not p.gone]
    lost = [p for p in peers if p.state == 'working' and p.gone]
    failed = [p for p in peers if p.state == 'failed']
    left = [p for p in peers if p.state == 'left']
    if lost:
      self._lost_since = self._lost_since or now
      if now - self._lost_since < SETTLE:
        return None
      text = few([f'{p}: {p.gone}' for p in lost], '; ')
      return self._all(lost=f'Lost {text}.')
    self._lost_since = None  # It gave a sign of life, just in time.
    if failed:
      if working and now - min(p.since for p in failed) < GRACE:
        return None
      own = {p.process_id: {'own': True} for p in failed}
      return {**self._all(lost=_ended(failed)), **own}
    if not working:
      return self._all(end=not left and not any(p.gone for p in peers))
    if left and now - min(p.since for p in left) > self._lost_timeout:
      names = few([str(p) for p in working])
      return self._all(
        lost=f'{_ended(left)}. {self._lost_timeout:g} s later the run has not'
        f' ended in {names}.'
      )
    return None

  def absent(self) -> str:
    """Names the processes that have not joined: `Process 1 (host-b) of 2`."""
    ids = sorted(self._absent())
    if len(self._hosts) == self._num_processes:
      names = [f'{i} ({self._hosts[i]})' for i in ids]
    else:
      names = [str(i) for i in ids]
    plural = '' if len(ids) == 1 else 'es'
    return f'Process{plural} {few(names)} of {self._num_processes}'

  def _absent(self) -> set[int]:
    return set(range(self._num_processes)) - self.peers.keys()

  def _missing(self) -> str:
    joined = [f'{i} on {p.host}' for i, p in sorted(self.peers.items())]
    text = (
      f'{self.absent()} did not join within {self._start_timeout:.0f} s;'
      f' joined: {few(joined)}. Look at the logs of the missing: they ended,'
      ' were never started, or cannot reach the host of process 0.'
    )
    if self._hosts and len(self._hosts) != self._num_processes:
      text += f" The cluster's hosts: {', '.join(self._hosts)}."
    if self._misfits:
      text += f' Sent away: {few(list(self._misfits.values()), " ")}'
    return text


def few(names: Sequence[str], separator: str = ', ') -> str:
  """Joins names; of a whole pod only the first."""
  shown, more = list(names[:16]), len(names) - 16
  if more > 0:
    shown.append(f'and {more} more')
  return separator.join(shown)


def _ended(peers: Iterable[Peer]) -> str:
  ended = sorted(peers, key=lambda peer: peer.since)
  return few([f'P{str(p)[1:]} ended: {p.text}' for p in ended], ' ')


def _difference(first: Peer, second: Peer) -> str:
  """Says in which fact two processes differ, and in what part of it.

  Of lists these are elements. Mappings are of what is installed: library ->
  version.
  """
  for name in {**first.facts, **second.facts}:
    one, other = first.facts.get(name), second.facts.get(name)
    if one == other:
      continue
    advice = ''
    if isinstance(one, Mapping) and isinstance(other, Mapping):
      keys = sorted({*one, *other})
      names = [key for key in keys if one.get(key) != other.get(key)]
      one, other = (
        ', '.join(f'{key} {has.get(key, "missing")}' for key in names)
        for has in (one, other)
      )
      advice = (
        ' Install the same on all hosts, from one file: launch/locks has such,'
        " and a run's work directory has its requirements.txt."
      )
    if isinstance(one, list) and isinstance(other, list):
      changes = difflib.SequenceMatcher(None, one, other, False).get_opcodes()
      changes = [change for change in changes if change[0] != 'equal']
      one = ' '.join(str(w) for _, a, b, _, _ in changes for w in one[a:b])
      other = ' '.join(str(w) for *_, a, b in changes for w in other[a:b])
    return (
      f'Processes differ in their {name}: {first} has {one or "nothing"!r},'
      f' {second} has {other or "nothing"!r}. It must be the same.{advice}'
    )
  return ''
