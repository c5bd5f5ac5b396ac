"""Makes a run save and stop when its machine is about to be taken away.

The notice is SIGTERM (which clusters send before they kill), SIGHUP (of a
terminal that closes), an answer of Google Cloud's metadata server, or Ctrl-C.
All processes of a run stop after the same step.

The processes agree through `runtime.distributed`. JAX's own preemption service
would lose a notice that comes before the first step of a resumed run. It also
cannot be asked from several places that each count their own steps.
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

from vit_jax.runtime import distributed, errors, logs
from vit_jax.runtime.distributed import jax_service

_PRODUCT_NAME = pathlib.Path('/sys/class/dmi/id/product_name')
_METADATA_SERVER = 'metadata.google.internal'
_NAMES = {
  signal.SIGTERM: 'SIGTERM',
  signal.SIGHUP: 'SIGHUP',
  signal.SIGINT: 'Ctrl-C',
}
# Seconds to wait for the metadata server, which runs on the same machine.
_ANSWER_LIMIT = 3.0
# The most calls of `requested` between two checks of all processes. If calls
# slow down from milliseconds to 0.3 s, the next check still comes within 30
# seconds, the notice of a spot machine. A higher limit would save almost
# nothing, because a check takes about a millisecond.
_MOST_CALLS = 100


_OPEN: set['Notice'] = set()

# A forked child inherits its parent's socket, and must not write to it.
os.register_at_fork(after_in_child=lambda: _forget_wakeup())


def _forget_wakeup() -> None:
  if not _OPEN:
    return
  with contextlib.suppress(ValueError):  # Raised outside the main thread.
    signal.set_wakeup_fd(-1)


class StopRequested(Exception):
  """Raised inside an evaluation to leave it, so that the run can stop."""


class Notice:
  """While open, signals and the cloud's notices make `requested` return True.

  Handles SIGTERM, SIGHUP and SIGINT (Ctrl-C), except those that the process
  ignores, if it is opened in the main thread. Python allows no handlers in
  other threads: there neither the signals nor the cloud is watched, and only
  other processes' notices count. A second SIGTERM does not end the process. A
  second Ctrl-C ends it at once, whatever the main thread is doing. In an
  interactive Python, Ctrl-C keeps its usual meaning.

  A notice may be open around several consecutive runs.

  Attributes:
    reason: why the run should stop: 'SIGTERM', 'SIGHUP', 'Ctrl-C', 'preempted',
      'maintenance-event TERMINATE_ON_HOST_MAINTENANCE', or 'SIGTERM of another
      process' if this process had no notice. 'Ctrl-C of another process'
      replaces this process's own reason. '' until `requested` is True.
    nothing_to_save: whether a signal ends the process at once, even while the
      main thread compiles. The other processes of the run end, too.
  """

  def __init__(self, *, poll_seconds: float = 2.0, check_seconds: float = 2.0):
    """Prepares the notice; the context starts it.

    Args:
      poll_seconds: seconds between questions to the cloud, which gives a spot
        machine 30 seconds' notice.
      check_seconds: approximate seconds between checks of all processes.
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
    # The main thread may hold the lock of the log for long, so one thread
    # handles the signals, and another logs their texts.
    self._log = queue.SimpleQueue()
    self._pid = os.getpid()
    self._several = jax.distributed.is_initialized()
    if threading.current_thread() is not threading.main_thread():
      return self
    self._start('preemption-log', self._write_log)
    # Python runs its handlers only when the main thread returns from C++, such
    # as after minutes of compilation. The byte of each signal comes at once.
    handled = {signal.SIGTERM}
    # A process in the background may ignore Ctrl-C, which is not meant for it;
    # `nohup` makes it ignore SIGHUP.
    for number in (signal.SIGHUP, signal.SIGINT):
      if signal.getsignal(number) is not signal.SIG_IGN:
        handled.add(number)
    if _is_interactive():
      handled.discard(signal.SIGINT)
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
    if self._handling:
      signal.set_wakeup_fd(self._previous_fd)
      _OPEN.discard(self)
      # Ends the reading thread, even if a forked child holds a copy.
      self._writer.shutdown(socket.SHUT_RDWR)
      self._writer.close()
    for thread in self._threads:
      thread.join()
    if self._handling:
      self._bytes.close()
      for number, previous in self._previous.items():
        # None means a handler that Python did not set and cannot restore.
        signal.signal(number, signal.SIG_DFL if previous is None else previous)
      self._handling = False
    self._threads = []

  def requested(self) -> bool:
    """Returns whether to save and stop now; stays True after the first True.

    All processes must call this equally often: after every step and every
    evaluated batch. All get True at the same call, so all must keep the same
    order of these calls and of their other collective calls. Most calls cost
    nothing; one every `check_seconds` waits for the slowest process.

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
      # All processes must end with the exit code of Ctrl-C, or launchers would
      # restart the others.
      by_user = self.reason == _NAMES[signal.SIGINT]
      if self._several and distributed.any_true(by_user) and not by_user:
        self.reason = 'Ctrl-C of another process'
      if self._several:
        logging.warning('%s: saving, then stopping.', self.reason)
    return self._requested

  def begin(self) -> None:
    """Begins a run: a signal ends it at once until `nothing_to_save` is False.

    Raises:
      PreemptedError: there was a notice before.
    """
    self.nothing_to_save = True
    if not self._own_reason:
      return
    error = self._error(
      self._own_reason, 'stopped before it began; start the command again.'
    )
    if self._ends_all(error.exit_code, str(error)):
      raise error

  def stopped(self, text: str) -> errors.PreemptedError:
    """Returns the error that ends a run that stopped on request and saved."""
    return self._error(self.reason, text)

  def _error(self, reason: str, text: str) -> errors.PreemptedError:
    kind = errors.PreemptedError
    if reason.startswith(_NAMES[signal.SIGINT]):
      kind = errors.InterruptedByUserError
    return kind(f'{reason}: {text}')

  def _on_signal(self, signum, frame) -> None:
    if os.getpid() != self._pid:
      # A forked child inherits this handler, but its parent must be able to end
      # it.
      signal.signal(signum, signal.SIG_DFL)
      os.kill(os.getpid(), signum)
      return
    if signum == signal.SIGHUP:
      logs.leave_closed_terminal()
    if not (self._own_reason or self._requested):
      self._own_reason = self._cloud_reason or _NAMES[signum]

  def _act_at_once(self, received: socket.socket) -> None:
    """Says what a signal leads to, or ends the process.

    It ends if it has nothing to save, or at a second Ctrl-C.
    """
    came = []
    while numbers := received.recv(64):
      for number in numbers:
        if number not in self._handled:
          continue
        if number == signal.SIGHUP:
          logs.leave_closed_terminal()
        name = _NAMES[number]
        reason = name
        if number == signal.SIGTERM and not came:
          reason = self._cloud_reason or name
        code = errors.PreemptedError.exit_code
        if number == signal.SIGINT:
          code = errors.InterruptedByUserError.exit_code
        nothing = f'{reason}: nothing was trained since the start.'
        if self.nothing_to_save and self._ends_all(code, nothing):
          _end(nothing, code)
        elif number == signal.SIGINT and name in came:
          text = f'{name} again: what is not in a checkpoint is lost.'
          with contextlib.suppress(Exception):  # This process ends anyway.
            self._ends_all(code, text)
          _end(text, code)
        elif came or (self._requested and not self._own_reason):
          again = f'{name} again' if name in came else name
          self._log.put(f'{again}: the run is already saving and stopping.')
        elif self._several:
          self._log.put(f'{reason}: telling the other processes.')
        else:
          self._log.put(
            f'{reason}: saving after the present step, then stopping.'
          )
        came.append(reason)
    self._log.put('')

  def _ends_all(self, code: int, text: str) -> bool:
    """Ends the other processes; returns whether this process is alone now."""
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
      # Pauses grow while the server does not answer, but stay shorter than the
      # notice.
      pause = (
        min(2 * pause, 5 * self._poll_seconds)
        if preempted is None and event is None
        else self._poll_seconds
      )
      if self._end.wait(pause):
        return


def _is_interactive() -> bool:
  """Returns whether Python is interactive, where Ctrl-C must interrupt."""
  return hasattr(sys, 'ps1') or 'ipykernel' in sys.modules


def _end(text: str, code: int) -> None:
  print(
    f'ended: {text} Start the same command again to go on.', file=sys.stderr
  )
  jax_service.end_process(code)


class _Agreement:
  """Tells all processes at the same call that one of them has had a notice.

  A check waits for the slowest process, so only some calls check. At each check
  the processes agree on the number of calls until the next one. All processes
  count the same calls, while their clocks and speeds differ.
  """

  def __init__(self, check_seconds: float):
    self._check_seconds = check_seconds
    self._spacing = 1  # Calls from the last check to the next.
    self._left = 1  # Calls up to and including the next check.
    self._checked: float | None = None

  def reached(self, had_notice: bool) -> bool:
    """Returns whether any process had a notice; False if this call skips."""
    self._left -= 1
    if self._left:
      return False
    self._left = 1
    if distributed.any_true(had_notice):
      return True
    self._left = self._spacing = distributed.broadcast(self._next_spacing())
    return False

  def _next_spacing(self) -> int:
    """Computes the calls until the next check; process 0's result counts.

    The number at most doubles, so that a few fast calls among slow ones do not
    put off the next check for long; it can shrink at once. The time before the
    first check is left out, because it includes compilation.
    """
    now = time.monotonic()
    last, self._checked = self._checked, now
    if last is None:
      return 1
    fitting = self._check_seconds * self._spacing / max(now - last, 1e-6)
    return max(1, min(int(fitting), 2 * self._spacing, _MOST_CALLS))


class _MaintenanceEvents:
  """Decides which maintenance events of the machine are a notice.

  A machine with GPUs learns an hour in advance that it will be stopped. The run
  then saves and stops. If it is started again within that hour, the event is
  still there, and must not count again: the run would stop after every first
  step.
  """

  def __init__(self):
    self._standing: str | None = None

  def is_notice(self, event: str | None) -> bool:
    """Args: event: the current value; None if the server did not tell it."""
    if event is None or event == self._standing:
      return False
    first = self._standing is None
    self._standing = event
    # Values are NONE, MIGRATE_ON_HOST_MAINTENANCE (the machine moves without a
    # stop) and TERMINATE_ON_HOST_MAINTENANCE (older: SHUTDOWN_ON_HOST_...).
    stops = event.startswith(('TERMINATE', 'SHUTDOWN'))
    if stops and first:
      logging.warning(
        'maintenance-event %s was there before this run began: the run goes on'
        ' until SIGTERM.',
        event,
      )
    return stops and not first


def metadata_server() -> str | None:
  """Returns HOST[:PORT] of Google Cloud's metadata server; None elsewhere.

  Does not use the network: on other machines that would take seconds.
  """
  if server := os.environ.get('GCE_METADATA_HOST'):
    return server
  try:
    product = _PRODUCT_NAME.read_text()
  except OSError:
    return None
  return _METADATA_SERVER if product.startswith('Google') else None


def _ask(server: str, key: str) -> str | None:
  """Returns the value of an entry about this machine; None if no answer.

  See https://cloud.google.com/compute/docs/metadata/overview.
  """
  request = urllib.request.Request(
    f'http://{server}/computeMetadata/v1/instance/{key}',
    headers={'Metadata-Flavor': 'Google'},
  )
  # A proxy for the internet cannot reach the machine's own server.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=_ANSWER_LIMIT) as answer:
      return answer.read().decode(errors='replace').strip()
  except (OSError, http.client.HTTPException, ValueError):
    return None
