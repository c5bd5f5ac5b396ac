"""A process's side of the connection to the arbiter in process 0."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from vit_jax import errors
from vit_jax.distributed import arbiter, cluster, connection, roster, runtime

# Seconds.
_ATTEMPT = 5.0  # For one try to connect.
_PAUSE = 0.3  # Between two tries.
_TICK = 0.2
_LEAVE = 5.0  # For the others to leave too, when a run was preempted.
_EXIT = 6.0  # For the last log line to be written.


class Member(threading.Thread):
  """Joins, gives signs of life, and ends the process when another is lost."""

  def __init__(
    self,
    place: cluster.Place,
    facts: Mapping[str, Any],
    start_timeout: float,
    lost_timeout: float,
    own: socket.socket | None = None,
    drained: Callable[[], Any] = lambda: None,
  ):
    """Connects to nothing yet.

    Args:
      place: of this process.
      facts: JSON values that must be the same in all processes.
      start_timeout: seconds for process 0 to answer.
      lost_timeout: seconds without a sign of life of process 0.
      own: leads to the arbiter, in process 0.
      drained: waits until the arbiter has told all, in process 0.
    """
    super().__init__(name='member', daemon=True)
    self._place = place
    self._facts = facts
    self._start_timeout = start_timeout
    self._lost_timeout = lost_timeout
    self._own = own
    self._drained = drained
    self._first = f'process 0 at {place.host}:{place.port}'
    self._link: connection.Connection | None = None
    self._changed = threading.Condition()
    self._exchanging = threading.Lock()
    self._verdict: dict[str, Any] | None = None
    self._values: list[Any] | None = None
    self._unheard: list[dict[str, Any]] = []
    self._first_left = ''  # Why process 0 left on purpose.
    self._main_waits = False  # It raises the error itself.
    self._exiting = False
    self._seen = 0.0

  # Before the start, in the main thread.

  def join_run(self) -> None:
    """Waits until all processes have come.

    Raises:
      HostLostError: some did not, and which.
      ValueError: the processes do not fit together, and why.
    """
    deadline = time.monotonic() + self._start_timeout
    problem = ''
    while True:
      try:
        self._link = self._connect(deadline)
        new_problem = self._greet(self._link, deadline)
        if not new_problem:
          break
        self._link.close()
      except OSError as error:
        new_problem = error.strerror or str(error)
      if new_problem != problem:
        logging.info('Waiting for %s: %s.', self._first, new_problem)
      problem = new_problem
      if time.monotonic() > deadline:
        place = self._place
        raise errors.HostLostError(
          f'{self._first.capitalize()} did not answer within'
          f' {self._start_timeout:.0f} s ({problem}); this is process'
          f' {place.process_id} of {place.num_processes} on'
          f' {socket.gethostname()}. Look at the log of process 0: it ended,'
          ' was never started, or cannot be reached from this host.'
        )
      time.sleep(_PAUSE)
    self.start()

  def _connect(self, deadline: float) -> connection.Connection:
    if self._own is not None:
      return connection.Connection(self._own)
    timeout = min(_ATTEMPT, max(deadline - time.monotonic(), 0.1))
    address = (self._place.host, self._place.port)
    return connection.Connection(socket.create_connection(address, timeout))

  def _greet(self, link: connection.Connection, deadline: float) -> str:
    """Says hello, and waits; returns why it is to be tried again, or ''."""
    link.send(
      hello={
        'protocol': roster.PROTOCOL,
        'process_id': self._place.process_id,
        'num_processes': self._place.num_processes,
        'host': socket.gethostname(),
        'pid': os.getpid(),
        'facts': self._facts,
      }
    )
    # Process 0 decides when the time is over, once it has given a sign.
    silent = min(deadline, time.monotonic() + self._lost_timeout)
    while not link.closed:
      select.select([link.socket], [], [], _TICK)
      link.flush()
      try:
        messages = link.receive()
      except ValueError:
        return 'something else answers at this port'
      for i, message in enumerate(messages):
        silent = time.monotonic() + self._lost_timeout
        if 'welcome' in message:
          self._first = message['welcome']
          self._unheard = messages[i + 1 :]
          return ''
        if 'refused' in message:
          raise ValueError(message['refused'])
        if 'lost' in message:
          raise errors.HostLostError(message['lost'])
        if 'busy' in message:
          return message['busy']
      if time.monotonic() > silent:
        return 'connected, but no sign of life'
    return link.closed

  def close(self) -> None:
    """Leaves, if the run has not begun; else the thread closes."""
    if self._link is not None and not self.is_alive():
      self._link.close()

  # During the run, in the thread.

  def run(self) -> None:
    self._seen = last = time.monotonic()
    beaten = 0.0
    while self._verdict is None:
      if self._link.closed:
        time.sleep(_TICK)
      else:
        writes = [self._link.socket] if self._link.waits else []
        select.select([self._link.socket], writes, [], _TICK)
      now = time.monotonic()
      if now - last > 10 * _TICK:  # This process was stopped.
        self._seen += now - last
      last = now
      with self._changed:
        self._hear(now)
        if now - beaten > arbiter.beat_interval(self._lost_timeout):
          beaten = now
          self._link.send(beat=True)
        self._link.flush()
        self._changed.notify_all()
    self._link.close()
    with self._changed:
      self._exiting = 'lost' in self._verdict and not self._main_waits
    if self._exiting:
      self._exit(self._verdict['lost'])

  def _hear(self, now: float) -> None:
    messages, self._unheard = self._unheard, []
    if not self._link.closed:
      try:
        messages += self._link.receive()
      except ValueError as error:
        self._link.closed = f'sent what is no message ({error})'
    for message in messages:
      self._seen = now
      if 'values' in message:
        self._values = message['values']
      if 'left' in message and message['left'][0] == 0:
        self._first_left = message['left'][1]
      if not message.keys().isdisjoint(('lost', 'own', 'end')):
        self._verdict = message
        return
    silent = now - self._seen > self._lost_timeout
    if self._first_left and silent:
      self._verdict = {
        'lost': f'{self._first_left}. {self._lost_timeout:g} s later this'
        ' process has not ended.'
      }
    elif self._link.closed and not self._first_left:
      self._verdict = {'lost': f'Lost {self._first}: {self._link.closed}.'}
    elif silent:
      self._verdict = {
        'lost': f'Lost {self._first}: no sign of life for'
        f' {self._lost_timeout:g} s.'
      }

  def _exit(self, text: str) -> None:
    """Ends the process, whatever the main thread hangs in."""
    code = errors.HostLostError.exit_code
    # The main thread may hold a lock that logging needs.
    backstop = threading.Timer(_EXIT, runtime.end_process, [code])
    backstop.daemon = True
    backstop.start()
    with contextlib.suppress(Exception):
      logging.error('%s', text)
    self._drained()
    runtime.end_process(code)

  # During the run, for the main thread.

  def exchange(self, kind: str, value: Any) -> list[Any]:
    """Gives a JSON value for some kind of purpose; costs one round trip.

    Calls of several threads come after each other.

    Returns:
      Those of all processes; of a broadcast only process 0's, the others None.

    Raises:
      RuntimeError: another process gave its value for another purpose.
      HostLostError: the run ended meanwhile. If a process was lost, this one
        ends then, mostly before this is raised.
    """
    if kind == 'broadcast' and self._place.process_id != 0:
      value = None
    with self._exchanging, self._changed:
      self._values = None
      self._link.send(value=[kind, value])
      self._changed.wait_for(
        lambda: self._values is not None or self._verdict is not None
      )
      if self._values is None:
        raise errors.HostLostError(
          self._verdict.get('lost', 'The run has ended in all processes.')
        )
      kinds = [kind for kind, _ in self._values]
      if len(set(kinds)) > 1:
        raise RuntimeError(
          f'The processes wait for each other in different calls: {kinds}.'
        )
      return [value for _, value in self._values]

  def fail(self, text: str) -> str:
    """Tells of an error; returns what lost process caused it, or ''."""
    return self._leave(arbiter.LINGER + roster.GRACE, failed=text).get(
      'lost', ''
    )

  def leave(self, text: str) -> None:
    """Tells of an error that all processes raise alike."""
    self._leave(_LEAVE, left=text)

  def finish(self, timeout: float) -> bool:
    """Waits until all are done; returns whether they are all still there.

    Args:
      timeout: seconds.

    Raises:
      HostLostError: one was lost or failed, or is not done in time.
    """
    verdict = self._leave(timeout, done='')
    if 'lost' in verdict:
      raise errors.HostLostError(verdict['lost'])
    if not verdict and not self._first_left:
      raise errors.HostLostError(
        f'Others are still at work {timeout:g} s after this process was done.'
      )
    return verdict.get('end', False)

  def _leave(self, timeout: float, **state: str) -> dict[str, Any]:
    """Returns the verdict, or {} if there is none."""
    with self._changed:
      # One error, once: this thread ends with the process.
      self._changed.wait_for(lambda: not self._exiting)
      self._main_waits = True
      self._link.send(**state)
      self._changed.wait_for(
        lambda: self._verdict or (self._first_left and self._link.closed),
        timeout,
      )
      return self._verdict or {}
