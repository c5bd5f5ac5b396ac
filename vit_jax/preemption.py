"""A notice that the machine will be taken away asks the run to save and stop.

The notice is SIGTERM, which clusters send before they kill, or what Google
Cloud's metadata server says. All processes of a run stop after the same step.
"""

import http.client
import os
import pathlib
import queue
import signal
import threading
import urllib.request

import jax
from absl import logging
from jax.experimental import multihost_utils

_PRODUCT_NAME = pathlib.Path('/sys/class/dmi/id/product_name')
_METADATA_SERVER = 'metadata.google.internal'
# Seconds for an answer of a server that is on the same machine.
_ANSWER_LIMIT = 3.0


class Notice:
  """While open, SIGTERM and the cloud's notices set what `requested` tells.

  One process has a handler of SIGTERM; it is left alone in other threads than
  the main one, where Python allows no handlers. With `jax.distributed`, JAX has
  one in C++ since it was initialised, and agrees with the other processes on a
  step, a second or two later; a handler here would take the signal away from
  it, so there is none. Either way, more of the signals don't end the process.

  Attributes:
    reason: why the run should stop: 'SIGTERM', 'preempted' or
      'maintenance-event TERMINATE_ON_HOST_MAINTENANCE'; '' as long as it should
      not. A process that stops because of another one's notice has 'SIGTERM'.
  """

  def __init__(self, *, poll_seconds: float = 2.0):
    """Nothing is watched before the context is entered.

    Args:
      poll_seconds: how often the cloud is asked. Of a spot machine it gives 30
        seconds' notice.
    """
    self.reason = ''
    self._poll_seconds = poll_seconds
    self._cloud_reason = ''
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
    self._distributed = jax.distributed.is_initialized()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not self._distributed:
      if not in_main_thread:
        return self
      self._start('preemption-log', self._write_log)
      self._previous = signal.signal(signal.SIGTERM, self._on_signal)
      self._handling = True
    server = metadata_server()
    if server:
      self._start('preemption-watch', self._watch, server)
    return self

  def __exit__(self, *_):
    self._end.set()
    self._log.put('')
    for thread in self._threads:
      thread.join()
    if self._handling:
      # None stands for a handler that Python did not set and can't set again.
      previous = self._previous
      signal.signal(
        signal.SIGTERM, signal.SIG_DFL if previous is None else previous
      )
      self._handling = False
    self._threads = []

  def requested(self, step: int) -> bool:
    """Whether to save and stop now; True after the same step on all processes.

    Args:
      step: the step that was just done. To be called after every step.
    """
    if self._distributed and not self._requested:
      self._requested = multihost_utils.reached_preemption_sync_point(step)
      if self._requested:
        self.reason = self._cloud_reason or 'SIGTERM'
        logging.warning(
          '%s, here or of another process: saving at step %d, then stopping.',
          self.reason,
          step,
        )
    return self._requested

  def _on_signal(self, signum, frame) -> None:
    if os.getpid() != self._pid:
      # A forked child inherits the handler; its parent must be able to end it.
      signal.signal(signum, signal.SIG_DFL)
      os.kill(os.getpid(), signum)
    elif self._requested:
      self._log.put('SIGTERM again; the run is already saving and stopping.')
    else:
      self.reason = self._cloud_reason or 'SIGTERM'
      self._requested = True
      self._log.put(
        f'{self.reason}: saving after the present step, then stopping.'
      )

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
