"""A notice that the machine will be taken away asks the run to save and stop.

The notice is SIGTERM, which clusters send before they kill, what Google Cloud's
metadata server says, or Ctrl-C. All processes of a run stop after the same
step.

The processes agree through `runtime.distributed`. JAX's own preemption service
would lose a notice that comes before the first step of a resumed run. It also
cannot be asked from several places, each with step numbers of its own.
"""

import contextlib
import http.client
import os
import pathlib
import queue
import signal
import socket
import sys
import threading
import time
import urllib.request

import jax
from absl import logging

from vit_jax.runtime import distributed, errors
from vit_jax.runtime.distributed import jax_service

_PRODUCT_NAME = pathlib.Path('/sys/class/dmi/id/product_name')
_METADATA_SERVER = 'metadata.google.internal'
_NAMES = {signal.SIGTERM: 'SIGTERM', signal.SIGINT: 'Ctrl-C'}
# Seconds for an answer of a server that is on the same machine.
_ANSWER_LIMIT = 3.0
# From one check of all processes to the next. Work that comes to take 0.3 s a
# call, after calls of milliseconds, is still checked every 30 seconds, which is
# all that a spot machine is given. More would save next to nothing: a check
# takes about a millisecond.
_MOST_CALLS = 100


_OPEN: set['Notice'] = set()

# A forked child has its parent's socket, and must not write to it.
os.register_at_fork(after_in_child=lambda: _forget_wakeup())


def _forget_wakeup() -> None:
  if not _OPEN:
    return
  with contextlib.suppress(ValueError):  # Not in the main thread.
    signal.set_wakeup_fd(-1)


class StopRequested(Exception):
  """Raised inside an evaluation to leave it, as the run is to save and stop."""


class Notice:
  """While open, signals and the cloud's notices set what `requested` tells.

  It has handlers of SIGTERM and SIGINT (Ctrl-C) in the main thread. Elsewhere
  Python allows none: then neither the signals nor the cloud is watched, and
  only other processes' notices count. More of SIGTERM don't end the process; a
  second Ctrl-C does at once, whatever the main thread is at. In an interactive
  Python Ctrl-C stays what it is.

  One may be open around several runs, one after the other.

  Attributes:
    reason: why the run should stop: 'SIGTERM', 'Ctrl-C', 'preempted',
      'maintenance-event TERMINATE_ON_HOST_MAINTENANCE', or 'SIGTERM of another
      process' where this one had no notice. 'Ctrl-C of another process' comes
      before its own. '' until `requested` is True.
    nothing_to_save: whether a signal ends the process at once, also while the
      main thread compiles. It ends the other processes of the run, too.
  """

  def __init__(self, *, poll_seconds: float = 2.0, check_seconds: float = 2.0):
    """Nothing is watched before the context is entered.

    Args:
      poll_seconds: how often the cloud is asked. Of a spot machine it gives 30
        seconds' notice.
      check_seconds: how often, about, several processes ask each other.
    """
    self.reason = ''
    self.nothing_to_save = False
    self._poll_seconds = poll_seconds
    self._agreement = _Agreement(check_seconds)
    self._cloud_reason = ''
    self._own_reason = ''
    self._several = False
    self._requested = False
    self._handling = False
    self._end = threading.Event()
    self._threads = []

  def __enter__(self):
    self._end.clear()
    # `put` may be called by a signal handler at any point of the main thread,
    # also while that is logging; therefore another thread logs.
    self._log = queue.SimpleQueue()
    self._pid = os.getpid()
    self._several = jax.distributed.is_initialized()
    if threading.current_thread() is not threading.main_thread():
      return self
    self._start('preemption-log', self._write_log)
    # Python's own handlers wait for the main thread to be back from what it
    # calls, as minutes of compilation. A byte of each signal comes at once.
    handled = [signal.SIGTERM]
    # Ignored, where it is meant for what runs in the foreground.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not (ignored or _is_interactive()):
      handled.append(signal.SIGINT)
    self._handled = frozenset(handled)
    _OPEN.add(self)
    self._bytes, writer = socket.socketpair()
    writer.setblocking(False)
    self._writer = writer
    self._start('preemption-signals', self._act_at_once, self._bytes)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    self._previous_fd = previous
    self._previous = {
      number: signal.signal(number, self._on_signal) for number in handled
    }
    self._handling = True
    server = metadata_server()
    if server:
      self._start('preemption-watch', self._watch, server)
    return self

  def __exit__(self, *_):
    self._end.set()
    self._log.put('')
    if self._handling:
      signal.set_wakeup_fd(self._previous_fd)
      _OPEN.discard(self)
      # Ends the thread that reads, also if a forked child has a copy.
      self._writer.shutdown(socket.SHUT_RDWR)
      self._writer.close()
    for thread in self._threads:
      thread.join()
    if self._handling:
      self._bytes.close()
      for number, previous in self._previous.items():
        # None stands for a handler that Python did not set and can't set again.
        signal.signal(number, signal.SIG_DFL if previous is None else previous)
      self._handling = False
    self._threads = []

  def requested(self) -> bool:
    """Whether to save and stop now; from the first True on, always True.

    To be called by all processes equally often: after every step and every
    evaluated batch. It is True at the same call in all of them, so they must
    make the calls in the same order as all else in which they wait for each
    other. Most calls cost nothing; one every `check_seconds` waits for the
    slowest process.

    Raises:
      RuntimeError: JAX's runtime was started without `distributed.connected`,
        or a process waits for the others in another call.
    """
    if self._requested:
      return True
    stop = bool(self._own_reason)
    if self._several:
      stop = self._agreement.reached(stop)
    if stop:
      self._requested = True
      self.reason = self._own_reason or 'SIGTERM of another process'
      # All must end with its code, or whoever restarts runs starts the others.
      by_user = self.reason == _NAMES[signal.SIGINT]
      if self._several and distributed.any_true(by_user) and not by_user:
        self.reason = 'Ctrl-C of another process'
      if self._several:
        logging.warning('%s: saving, then stopping.', self.reason)
    return self._requested

  def begin(self) -> None:
    """Says that a run begins, which has nothing to save until it says so."""
    self.nothing_to_save = True
    if not self._own_reason:
      return
    error = self._error(
      self._own_reason, 'stopped before it began; start the command again.'
    )
    if self._ends_all(error.exit_code, str(error)):
      raise error

  def stopped(self, text: str) -> errors.PreemptedError:
    """The error to end a run with that was asked to stop, and has saved."""
    return self._error(self.reason, text)

  def _error(self, reason: str, text: str) -> errors.PreemptedError:
    kind = errors.PreemptedError
    if reason.startswith(_NAMES[signal.SIGINT]):
      kind = errors.InterruptedByUserError
    return kind(f'{reason}: {text}')

  def _on_signal(self, signum, frame) -> None:
    if os.getpid() != self._pid:
      # A forked child inherits the handler; its parent must be able to end it.
      signal.signal(signum, signal.SIG_DFL)
      os.kill(os.getpid(), signum)
    elif self._own_reason or self._requested:
      self._log.put(
        f'{_NAMES[signum]} again; the run is already saving and stopping.'
      )
    else:
      self._own_reason = self._cloud_reason or _NAMES[signum]
      plan = (
        'telling the other processes'
        if self._several
        else 'saving after the present step, then stopping'
      )
      self._log.put(f'{self._own_reason}: {plan}.')

  def _act_at_once(self, received: socket.socket) -> None:
    """Ends the process where there is nothing to wait for."""
    interrupts = 0
    while numbers := received.recv(64):
      for number in numbers:
        if number not in self._handled:
          continue
        name = _NAMES[number]
        code = errors.PreemptedError.exit_code
        if number == signal.SIGINT:
          interrupts += 1
          code = errors.InterruptedByUserError.exit_code
        reason = self._cloud_reason or name
        nothing = f'{reason}: nothing was trained since the start.'
        if self.nothing_to_save and self._ends_all(code, nothing):
          _end(nothing, code)
        elif interrupts > 1:
          text = f'{name} again: what is not in a checkpoint is lost.'
          with contextlib.suppress(Exception):  # It ends, whatever they do.
            self._ends_all(code, text)
          _end(text, code)

  def _ends_all(self, code: int, text: str) -> bool:
    """Ends the other processes; returns whether there are none left."""
    return not self._several or distributed.stop_all(code, text)

  def _start(self, name, function, *args) -> None:
    thread = threading.Thread(
      target=function, args=args, name=name, daemon=True
    )
    thread.start()
    self._threads.append(thread)

  def _write_log(self) -> None:
    while text := self._log.get():
      logging.warning('%s', text)

  def _watch(self, server: str) -> None:
    """Waits for a notice of the cloud and turns it into a SIGTERM."""
    events = _MaintenanceEvents()
    pause = self._poll_seconds
    while True:
      preempted = _ask(server, 'preempted')
      event = _ask(server, 'maintenance-event')
      if preempted == 'TRUE':
        self._cloud_reason = 'preempted'
      elif events.is_notice(event):
        self._cloud_reason = f'maintenance-event {event}'
      if self._cloud_reason:
        os.kill(os.getpid(), signal.SIGTERM)
        return
      # Longer pauses while nobody answers, but shorter than the notice.
      pause = (
        min(2 * pause, 5 * self._poll_seconds)
        if preempted is None and event is None
        else self._poll_seconds
      )
      if self._end.wait(pause):
        return


def _is_interactive() -> bool:
  """Whether somebody types Python, who expects KeyboardInterrupt of Ctrl-C."""
  return hasattr(sys, 'ps1') or 'ipykernel' in sys.modules


def _end(text: str, code: int) -> None:
  print(
    f'ended: {text} Start the same command again to go on.', file=sys.stderr
  )
  jax_service.end_process(code)


class _Agreement:
  """Tells all processes at the same call that one of them has had a notice.

  To ask means to wait for the slowest process, so not every call does. Which
  calls do is agreed on one check ahead: the calls are counted alike in all
  processes, while clocks and speeds differ.
  """

  def __init__(self, check_seconds: float):
    self._check_seconds = check_seconds
    self._spacing = 1  # Calls from the last check to the next.
    self._left = 1  # Calls to the next check, which is one of them.
    self._checked: float | None = None

  def reached(self, had_notice: bool) -> bool:
    """Whether any process gives True; False at calls that don't ask."""
    self._left -= 1
    if self._left:
      return False
    self._left = 1
    if distributed.any_true(had_notice):
      return True
    self._left = self._spacing = distributed.broadcast(self._next_spacing())
    return False

  def _next_spacing(self) -> int:
    """What fits the pace since the last check; process 0's counts.

    It grows by doubling, so that a few fast calls among slow ones do not put
    the next check far away, and shrinks at once. The time before the first
    check is left out: something was compiled then.
    """
    now = time.monotonic()
    last, self._checked = self._checked, now
    if last is None:
      return 1
    fitting = self._check_seconds * self._spacing / max(now - last, 1e-6)
    return max(1, min(int(fitting), 2 * self._spacing, _MOST_CALLS))


class _MaintenanceEvents:
  """Which maintenance events of the machine are a notice.

  A machine with GPUs is told an hour before it is stopped. The run saves and
  stops then; when it is started again within that hour, what still stands is
  not a notice, or it would stop after every first step.
  """

  def __init__(self):
    self._standing: str | None = None

  def is_notice(self, event: str | None) -> bool:
    """Args: event: the present value; None if it could not be had."""
    if event is None or event == self._standing:
      return False
    first = self._standing is None
    self._standing = event
    # NONE, MIGRATE_ON_HOST_MAINTENANCE (the machine moves, and goes on),
    # TERMINATE_ON_HOST_MAINTENANCE; in older texts SHUTDOWN_ON_HOST_....
    stops = event.startswith(('TERMINATE', 'SHUTDOWN'))
    if stops and first:
      logging.warning(
        'maintenance-event %s stood before this run began: it goes on until'
        ' SIGTERM.',
        event,
      )
    return stops and not first


def metadata_server() -> str | None:
  """HOST[:PORT] of Google Cloud's metadata server; None on other machines.

  Asks no network: elsewhere, looking for the server would take seconds.
  """
  if server := os.environ.get('GCE_METADATA_HOST'):
    return server
  try:
    product = _PRODUCT_NAME.read_text()
  except OSError:
    return None
  return _METADATA_SERVER if product.startswith('Google') else None


def _ask(server: str, key: str) -> str | None:
  """The value of an entry about this machine; None if there is no answer.

  See https://cloud.google.com/compute/docs/metadata/overview.
  """
  request = urllib.request.Request(
    f'http://{server}/computeMetadata/v1/instance/{key}',
    headers={'Metadata-Flavor': 'Google'},
  )
  # A proxy for the internet can't reach the machine's own server.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=_ANSWER_LIMIT) as answer:
      return answer.read().decode(errors='replace').strip()
  except (OSError, http.client.HTTPException, ValueError):
    return None
