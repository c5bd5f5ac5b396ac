"""Makes a run save and stop when its machine is about to be taken away.

The notice is SIGTERM (which clusters send before they kill), SIGHUP (of a
closed terminal), an answer of Google Cloud's metadata server, or Ctrl-C.
Several processes stop after the same step: JAX's preemption service has a
handler of SIGTERM of its own, and tells all processes at which call of
`requested` to stop.
"""

import contextlib
import http.client
import itertools
import os
import pathlib
import signal
import socket
import sys
import threading
import urllib.request

import jax
from absl import logging
from jax.experimental import multihost_utils

from vit_jax.runtime import distributed, errors, logs

_PRODUCT_NAME = pathlib.Path('/sys/class/dmi/id/product_name')
_METADATA_SERVER = 'metadata.google.internal'
_NAMES = {
  signal.SIGTERM: 'SIGTERM',
  signal.SIGHUP: 'SIGHUP',
  signal.SIGINT: 'Ctrl-C',
}
# Seconds to wait for the metadata server, which runs on the same machine.
_ANSWER_LIMIT = 3.0
# Counts the calls of `requested` in this process, over all runs: JAX needs a
# number that never falls, and is the same in all processes.
_CALLS = itertools.count(1)


class StopRequested(Exception):
  """Raised inside an evaluation to leave it, so that the run can stop."""


class Notice:
  """While open, signals and the cloud's notices make `requested` return True.

  Handles SIGTERM, SIGHUP and SIGINT (Ctrl-C), except those that the process
  ignores, if it is opened in the main thread. Python allows no handlers in
  other threads: there neither the signals nor the cloud is watched. A second
  SIGTERM does not end the process. A second Ctrl-C ends it at once, whatever
  the main thread is doing. In an interactive Python, Ctrl-C keeps its usual
  meaning.

  A notice may be open around several consecutive runs.

  Attributes:
    reason: why the run should stop: 'SIGTERM', 'SIGHUP', 'Ctrl-C', 'preempted'
      or 'maintenance-event ...' of the cloud, or 'Ctrl-C of another process';
      '' if it should go on.
    nothing_to_save: whether a signal ends a single process at once, even while
      its main thread compiles.
  """

  def __init__(self, *, poll_seconds: float = 2.0):
    """Prepares the notice; the context starts it.

    Args:
      poll_seconds: seconds between questions to the cloud, which gives a spot
        machine 30 seconds' notice.
    """
    self.reason = ''
    self.nothing_to_save = False
    self._poll_seconds = poll_seconds
    self._cloud_reason = ''
    self._requested = False
    self._several = False
    self._previous = {}
    self._end = threading.Event()
    self._threads = []

  def __enter__(self):
    self._several = jax.process_count() > 1
    if threading.current_thread() is not threading.main_thread():
      return self
    self._end.clear()
    # Python runs its handlers only when the main thread returns from C++, such
    # as after minutes of compilation. The byte of each signal comes at once.
    self._bytes, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    self._previous_fd = signal.set_wakeup_fd(
      self._writer.fileno(), warn_on_full_buffer=False
    )
    handled = set(_NAMES)
    if self._several:  # JAX's own handler has it.
      handled.discard(signal.SIGTERM)
    if _is_interactive():
      handled.discard(signal.SIGINT)
    # A process in the background may ignore Ctrl-C, which is not meant for it;
    # `nohup` makes it ignore SIGHUP.
    handled -= {n for n in handled if signal.getsignal(n) is signal.SIG_IGN}
    self._previous = {n: signal.signal(n, self._on_signal) for n in handled}
    self._start('preemption-signals', self._read_signals, self._bytes)
    if server := metadata_server():
      self._start('preemption-watch', self._watch, server)
    return self

  def __exit__(self, *_):
    self._end.set()
    if self._threads:
      signal.set_wakeup_fd(self._previous_fd)
      self._writer.close()  # Ends the reading thread.
      for thread in self._threads:
        thread.join()
      self._bytes.close()
    for number, previous in self._previous.items():
      # None means a handler that Python did not set and cannot restore.
      signal.signal(number, signal.SIG_DFL if previous is None else previous)
    self._previous, self._threads = {}, []

  def requested(self) -> bool:
    """Returns whether to save and stop now; stays True after the first True.

    All processes must call this equally often: after every step and every
    evaluated batch. All get True at the same call.
    """
    if self._requested or not self._several:
      return bool(self.reason)
    if not multihost_utils.reached_preemption_sync_point(next(_CALLS)):
      return False
    self._requested = True
    # All processes must end with the exit code of Ctrl-C, or launchers would
    # restart the others.
    name = _NAMES[signal.SIGINT]
    by_user = distributed.any_true(self.reason == name)
    if by_user and self.reason != name:
      self.reason = f'{name} of another process'
    # JAX does not tell which process received the SIGTERM.
    self.reason = self.reason or self._cloud_reason or 'SIGTERM'
    logging.warning('%s: saving, then stopping.', self.reason)
    return True

  def begin(self) -> None:
    """Begins a run: a signal ends it at once until `nothing_to_save` is False.

    Raises:
      PreemptedError: there was a notice before.
    """
    self.nothing_to_save = True
    if self._requested or (self.reason and not self._several):
      raise self.stopped('stopped before it began; start the command again.')

  def stopped(self, text: str) -> errors.PreemptedError:
    """Returns the error that ends a run that stopped on request and saved."""
    kind = errors.PreemptedError
    if self.reason.startswith(_NAMES[signal.SIGINT]):
      kind = errors.InterruptedByUserError
    return kind(f'{self.reason}: {text}')

  def _on_signal(self, signum, frame) -> None:
    if signum == signal.SIGHUP:
      logs.leave_closed_terminal()
    self.reason = self.reason or self._cloud_reason or _NAMES[signum]

  def _read_signals(self, received: socket.socket) -> None:
    """Logs signals, which a handler must not do, and acts on them at once."""
    came = []
    while numbers := received.recv(64):
      for number in filter(self._previous.__contains__, numbers):
        if number == signal.SIGHUP:
          logs.leave_closed_terminal()
        name = _NAMES[number]
        reason = name if came else self._cloud_reason or name
        if self.nothing_to_save and not self._several:
          _end(number, f'{reason}: nothing was trained since the start.')
        if number == signal.SIGINT and name in came:
          _end(number, f'{name} again: what is not in a checkpoint is lost.')
        if came:
          again = f'{name} again' if name in came else name
          logging.warning('%s: the run is already saving and stopping.', again)
        elif self._several:
          logging.warning('%s: telling the other processes.', reason)
          os.kill(os.getpid(), signal.SIGTERM)  # JAX's handler tells them.
        else:
          logging.warning(
            '%s: saving after the present step, then stopping.', reason
          )
        came.append(name)

  def _start(self, name, function, *args) -> None:
    thread = threading.Thread(
      target=function, args=args, name=name, daemon=True
    )
    thread.start()
    self._threads.append(thread)

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


def _end(number: int, text: str) -> None:
  kind = errors.PreemptedError
  if number == signal.SIGINT:
    kind = errors.InterruptedByUserError
  with contextlib.suppress(OSError):
    print(
      f'ended: {text} Start the same command again to go on.', file=sys.stderr
    )
  distributed.end_process(kind.exit_code)


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
