"""Keeps the list of a run's processes, and decides when and how the run ends.

This module uses no sockets. A process that fails ends the others too, but not
at once. The others may be about to raise the same error, and then each ends
with its own. Also, a collective that raises in one process mostly means that
another process died.
"""

import dataclasses
import difflib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.runtime.distributed.messages import PROTOCOL, InvalidError

# Seconds.
TICK = 0.2  # Between two checks of the processes.
_PAUSE = 2.0  # After a longer time between checks, this process stood still.
GRACE = 3  # Between a process's error and the verdict.
SETTLE = 0.5  # Between a loss and the verdict, to name all hosts that die.
# Between the last arrival and the verdict that a process does not fit. The
# wrong hello may be a stranger's, and the real process may come a little later.
VACANT = 12.0
_SHOWN = 1000  # Characters of a difference, in an error message.

# A message to a process: its kind and its fields.
Told = tuple[str, Mapping[str, Any]]
Verdict = Mapping[int, Told]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Time limits in seconds.

  Attributes:
    start: the time for all processes to join.
    lost: the time without a sign of life after which a process is lost.
  """

  start: float
  lost: float


class Clock:
  """The clock of a process that regularly checks other processes."""

  def __init__(self, limits: Limits):
    self.now = self._beaten = time.monotonic()
    self._interval = min(limits.lost / 10, 5.0)

  def tick(self) -> float:
    """Returns for how many seconds this process stood still."""
    last, self.now = self.now, time.monotonic()
    return self.now - last if self.now - last > _PAUSE else 0.0

  def beat(self) -> bool:
    """Returns whether to send a sign of life now."""
    if self.now - self._beaten < self._interval:
      return False
    self._beaten = self.now
    return True


class MismatchError(Exception):
  """The process belongs to another run or program, or was started wrongly."""


@dataclasses.dataclass
class Peer:
  """One process of the run, as process 0 knows it."""

  process_id: int
  host: str
  pid: int
  identity: Mapping[str, Any]  # Facts that must be the same in all processes.
  nonce: str = ''  # Identifies a process that connects again.
  seen: float = 0.0  # The time of its last sign of life.
  state: str = 'working'  # Or 'done' or 'failed'.
  since: float = 0.0  # The time when this state began.
  error: Mapping[str, Any] | None = None  # Fields of `failed`, see `messages`.
  gone: str = ''  # Why it can send nothing more; '' while it can.

  def __str__(self):
    return f'process {self.process_id} on {self.host} (pid {self.pid})'


class Roster:
  """The processes of a run, from before its start until its end."""

  def __init__(
    self,
    first: Peer,
    num_processes: int,
    hosts: Sequence[str],
    limits: Limits,
    now: float,
  ):
    """Begins with process 0 (`first`) alone; `hosts` as in `cluster.Place`."""
    self.peers = {0: first}
    self.started = False
    self.num_processes = num_processes
    self.limits = limits
    self._hosts = hosts
    self._begun = self._last_came = now
    # Processes that do not fit, by nonce: the id that they claimed, and why.
    self._sent_away: dict[str, tuple[int, str]] = {}
    self._lost_since: float | None = None

  def enter(self, now: float, hello: Mapping[str, Any]) -> Peer:
    """Adds a process; `hello` is checked already, see `messages`.

    Raises:
      MismatchError: the process belongs to another run, or was started wrongly.
        Only this process gets the message. All get it only if no other process
        comes in its place.
    """
    names = ('process_id', 'host', 'pid', 'identity', 'nonce')
    peer = Peer(**{name: hello[name] for name in names}, seen=now)
    if mismatch := self._find_mismatch(peer, hello):
      # A stranger could send any number of these, so their number is limited.
      if len(self._sent_away) < self.num_processes:
        self._sent_away[peer.nonce] = peer.process_id, mismatch
        self._last_came = now
      raise MismatchError(mismatch)
    # A process that claimed this id before was not the right one.
    away = self._sent_away.items()
    self._sent_away = {n: a for n, a in away if a[0] != peer.process_id}
    self.peers[peer.process_id] = peer
    self._last_came = now
    return peer

  def _find_mismatch(self, peer: Peer, hello: Mapping[str, Any]) -> str:
    """Returns why a process does not belong to the run; '' if it does."""
    if hello['protocol'] != PROTOCOL:
      return f'Another version of this program runs as {peer}.'
    if hello['num_processes'] != self.num_processes:
      return (
        f'Process 0 expects {self.num_processes} processes, and {peer} expects'
        f' {hello["num_processes"]}. Give all processes the same number, and'
        ' each run its own coordinator_address.'
      )
    if peer.process_id >= self.num_processes:
      raise InvalidError('the process_id of hello')
    old = self.peers.get(peer.process_id)
    if old and (old.nonce != peer.nonce or not peer.nonce):
      return (
        f'Two processes have the same process id: {old} and {peer}. Give each'
        ' its own id, or end the earlier run if one of them belongs to it.'
      )
    return _difference(self.peers[0], peer)

  def leave(self) -> list[Peer]:
    """Removes and returns the processes that left before the start."""
    gone = [peer for i, peer in self.peers.items() if peer.gone and i != 0]
    for peer in gone:
      del self.peers[peer.process_id]
    return gone

  def pause(self, seconds: float) -> None:
    """Extends all limits by the time that process 0 stood still."""
    self._begun += seconds
    for peer in self.peers.values():
      peer.seen += seconds

  def complete(self) -> bool:
    return len(self.peers) == self.num_processes

  def start(self, now: float) -> None:
    self.started = True
    for peer in self.peers.values():
      peer.seen = now

  def verdict(self, now: float) -> Verdict | None:
    """Returns the last message to each process; None while the run goes on."""
    if self.started:
      return self._judge(now)
    late = now - self._begun > self.limits.start
    waited = late or now - self._last_came > VACANT
    if waited and (text := self._mismatch()):
      return self._all('refused', text=text)
    return self._all('lost', text=self._missing()) if late else None

  def _mismatch(self) -> str:
    """Returns why not to wait, if all missing processes were sent away."""
    absent = self._absent()
    own = {i: text for i, text in self._sent_away.values() if i in absent}
    doubles = [text for i, text in self._sent_away.values() if i in self.peers]
    if not absent or len(own) + len(doubles) < len(absent):
      return ''
    return (doubles + [own[i] for i in sorted(own)])[0]

  def _all(self, kind: str, **fields: Any) -> Verdict:
    return dict.fromkeys(self.peers, (kind, fields))

  def _judge(self, now: float) -> Verdict | None:
    peers = [self.peers[i] for i in sorted(self.peers)]
    busy = [p for p in peers if p.state == 'working']
    lost = [f'{p}: {why}' for p in busy if (why := self._gone(p, now))]
    failed = [p for p in peers if p.state == 'failed']
    if lost:
      self._lost_since = self._lost_since or now
      if now - self._lost_since < SETTLE:
        return None
      return self._all('lost', text=f'Lost {few(lost, "; ")}.')
    self._lost_since = None  # A silent process gave a sign of life in time.
    if busy and all(now - p.since < p.error['grace'] for p in failed):
      return None
    if failed:
      verdict = self._all('ended', **_ended(failed, busy))
      return {**verdict, **{p.process_id: ('own', {}) for p in failed}}
    return self._all('end', orderly=not any(self._gone(p, now) for p in peers))

  def _gone(self, peer: Peer, now: float) -> str:
    if not peer.gone and now - peer.seen > self.limits.lost:
      return f'no sign of life for {self.limits.lost:g} s'
    return peer.gone

  def absent(self) -> str:
    """Names the processes that have not joined: `Process 1 (host-b) of 2`."""
    ids = sorted(self._absent())
    if len(self._hosts) == self.num_processes:
      names = [f'{i} ({self._hosts[i]})' for i in ids]
    else:
      names = [str(i) for i in ids]
    plural = '' if len(ids) == 1 else 'es'
    return f'Process{plural} {few(names)} of {self.num_processes}'

  def _absent(self) -> set[int]:
    return set(range(self.num_processes)) - self.peers.keys()

  def _missing(self) -> str:
    joined = [f'{i} on {p.host}' for i, p in sorted(self.peers.items())]
    text = (
      f'{self.absent()} did not join within {self.limits.start:.0f} s;'
      f' joined: {few(joined)}. See the logs of the missing processes: they'
      ' ended, were never started, or cannot reach the host of process 0.'
    )
    if self._hosts and len(self._hosts) != self.num_processes:
      text += f" The cluster's hosts: {', '.join(self._hosts)}."
    if self._sent_away:
      texts = [text for _, text in self._sent_away.values()]
      text += f' Sent away: {few(texts, " ")}'
    return text


def few(names: Sequence[str], separator: str = ', ') -> str:
  """Joins at most 16 names, and counts the others."""
  shown, more = list(names[:16]), len(names) - 16
  if more > 0:
    shown.append(f'and {more} more')
  return separator.join(shown)


def _ended(failed: Sequence[Peer], busy: Sequence[Peer]) -> dict[str, Any]:
  """Returns the exit code of the first failed process, and all errors."""
  failed = sorted(failed, key=lambda peer: (peer.error['grace'], peer.since))
  first = failed[0].error
  text = few([f'P{str(p)[1:]} ended: {p.error["text"]}' for p in failed], ' ')
  if busy and first['grace'] > GRACE:
    text += (
      f'. {first["grace"]} s later the run has not ended in'
      f' {few([str(p) for p in busy])}.'
    )
  return {'code': first['code'], 'text': text}


def _difference(first: Peer, second: Peer) -> str:
  """Describes the first difference of two processes; '' if they agree.

  For lists, it names only the differing elements. Facts that are mappings hold
  installed libraries and their versions.
  """
  for name in {**first.identity, **second.identity}:
    one, other = first.identity.get(name), second.identity.get(name)
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
        ' Install the same on all hosts from one file, such as one in'
        " launch/locks or the requirements.txt in a run's work directory."
      )
    if isinstance(one, list) and isinstance(other, list):
      changes = difflib.SequenceMatcher(None, one, other, False).get_opcodes()
      changes = [change for change in changes if change[0] != 'equal']
      one = ' '.join(str(w) for _, a, b, _, _ in changes for w in one[a:b])
      other = ' '.join(str(w) for *_, a, b in changes for w in other[a:b])
    one, other = (str(fact or 'nothing')[:_SHOWN] for fact in (one, other))
    return (
      f'Processes differ in their {name}: {first} has {one!r}, {second} has'
      f' {other!r}. It must be the same.{advice}'
    )
  return ''
