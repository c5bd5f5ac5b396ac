"""Makes a run save and stop when its machine is about to be taken away.

The notice is SIGTERM (which clusters send before they kill), SIGHUP (of a
closed terminal), an answer of Google Cloud's metadata server, or Ctrl-C.
Several processes stop after the same step: JAX's preemption service has a
handler of SIGTERM of its own, and tells all processes at which call of
`requested` to stop.
"""

import contextlib
import functools
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
_PREEMPTED = 'http://{}/computeMetadata/v1/instance/preempted'
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
      of the cloud, or 'Ctrl-C of another process'; '' if it should go on.
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
    self._cloud_reason = ''  # Set before the SIGTERM that it causes.
    self._requested = False
    self._several = False
    self._previous = {}
    self._end = threading.Event()
    self._threads = []

  def __enter__(self):
    self._several = jax.process_count() > 1
    if threading.current_thread() is not threading.main_thread():
      return self
    handled = set(_NAMES)
    if self._several:  # JAX's own handler has it.
      handled.discard(signal.SIGTERM)
    # In an interactive Python, Ctrl-C must interrupt.
    if hasattr(sys, 'ps1') or 'ipykernel' in sys.modules:
      handled.discard(signal.SIGINT)
    # A process in the background may ignore Ctrl-C, which is not meant for it;
    # `nohup` makes it ignore SIGHUP.
    handled -= {n for n in handled if signal.getsignal(n) is signal.SIG_IGN}
    # Python runs its handlers only when the main thread returns from C++, such
    # as after minutes of compilation. The byte of each signal comes at once.
    received, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    self._previous_fd = signal.set_wakeup_fd(
      self._writer.fileno(), warn_on_full_buffer=False
    )
    self._previous = {n: signal.signal(n, self._on_signal) for n in handled}
    todo = [(self._read_signals, received)]
    if server := metadata_server():
      todo.append((self._watch, server))
    for function, argument in todo:
      thread = threading.Thread(target=function, args=[argument], daemon=True)
      thread.start()
      self._threads.append(thread)
    return self

  def __exit__(self, *_):
    self._end.set()
    if self._threads:
      signal.set_wakeup_fd(self._previous_fd)
      self._writer.close()  # Ends the reading thread.
    for thread in self._threads:
      thread.join()
    for number, previous in self._previous.items():
      # None means a handler that Python did not set and cannot restore.
      signal.signal(number, signal.SIG_DFL if previous is None else previous)

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
    return _kind(self.reason)(f'{self.reason}: {text}')

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
        end = functools.partial(distributed.end_process, _kind(name).exit_code)
        if self.nothing_to_save and not self._several:
          end(f'{reason}: ended; nothing was trained since the start.')
        if number == signal.SIGINT and name in came:
          end(f'{name} again: ended; what is not in a checkpoint is lost.')
        if came:
          logging.warning('%s: the run is already saving and stopping.', name)
        elif self._several:
          logging.warning('%s: telling the other processes.', reason)
          os.kill(os.getpid(), signal.SIGTERM)  # JAX's handler tells them.
        else:
          logging.warning(
            '%s: saving after the present step, then stopping.', reason
          )
        came.append(name)
    received.close()

  def _watch(self, server: str) -> None:
    """Waits until the cloud preempts the machine; turns that into a SIGTERM."""
    # See https://cloud.google.com/compute/docs/metadata/overview.
    request = urllib.request.Request(
      _PREEMPTED.format(server), headers={'Metadata-Flavor': 'Google'}
    )
    # Not through a proxy, which knows another machine's server at most.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
      with (
        contextlib.suppress(OSError, http.client.HTTPException),
        opener.open(request, timeout=_ANSWER_LIMIT) as answer,
      ):
        if answer.read().strip() == b'TRUE':
          self._cloud_reason = 'preempted'
          os.kill(os.getpid(), signal.SIGTERM)
          return
      if self._end.wait(self._poll_seconds):
        return


def _kind(reason: str) -> type[errors.PreemptedError]:
  """Returns the error, and so the exit code, of a reason to stop."""
  by_user = reason.startswith(_NAMES[signal.SIGINT])
  return errors.InterruptedByUserError if by_user else errors.PreemptedError


def metadata_server() -> str | None:
  """Returns HOST[:PORT] of Google Cloud's metadata server; None elsewhere.

  Does not use the network: on other machines that would take seconds.
  """
  if server := os.environ.get('GCE_METADATA_HOST'):
    return server
  with contextlib.suppress(OSError):
    if _PRODUCT_NAME.read_text().startswith('Google'):
      return 'metadata.google.internal'
  return None
