"""Starts and ends JAX's own distributed runtime, and delays its abort."""

import atexit
import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import jax
from absl import logging

from vit_jax.runtime import errors
from vit_jax.runtime.distributed import cluster

# Seconds.
_INITIALIZE = 120.0  # For the start, when all processes are there.
_SHUTDOWN = 30  # For the end, when all processes are done.
_END = 3.0  # Between the end of the main thread and that of the process.
_FLUSH = 2.0  # For writing the logs and the output.


def start(place: cluster.Place, lost_timeout: float) -> None:
  """Starts JAX's runtime; all processes must call this at about the same time.

  JAX's runtime supervises the processes too, but does not name a lost one. Its
  limits are longer than ours, so that our message comes first. Its SIGTERM
  handler is turned off, because it would take the signal away from
  `preemption`; Orbax then does not learn of a preemption.

  If the runtime does not start in time, the process ends with the exit code of
  `HostLostError`, because JAX's own limit would abort it.

  Raises:
    HostLostError: the runtime did not start, though all processes are there.
  """
  problem = (
    f"JAX's runtime did not start at {place.coordinator_address}, though all"
    f' {place.num_processes} processes are there%s. If it happens again, check'
    ' that they can reach this port of process 0, and that no other program'
    ' uses it.'
  )

  def give_up():
    logging.error('%s', problem % f': no answer for {_INITIALIZE:g} s')
    end_process(errors.HostLostError.exit_code)

  limit = threading.Timer(_INITIALIZE, give_up)
  limit.daemon = True
  limit.start()
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      coordinator_address=place.coordinator_address,
      num_processes=place.num_processes,
      process_id=place.process_id,
      local_device_ids=place.local_device_ids,
      cluster_detection_method='deactivate',
      initialization_timeout=round(_INITIALIZE) + 60,
      heartbeat_timeout_seconds=round(max(100, 2 * lost_timeout)),
      shutdown_timeout_seconds=_SHUTDOWN,
    )
  # An error of the network or the port. Wrong use raises a RuntimeError.
  except jax.errors.JaxRuntimeError as error:
    raise errors.HostLostError(problem % f' ({error})') from error
  finally:
    limit.cancel()


def stop() -> None:
  """Ends JAX's runtime in all processes together."""
  try:
    jax.distributed.shutdown()
  except Exception as error:  # The run's work is done already.
    logging.warning("JAX's runtime did not shut down cleanly: %s", error)


def end_process(exit_code: int, error: str = '') -> None:
  """Ends this process now, without the exit handlers of Python and JAX.

  JAX's exit handler would wait for the other processes, and abort. Works even
  if other threads hang, unless they hold Python's interpreter lock. Logs
  `error` first.
  """
  with contextlib.suppress(Exception):
    for child in multiprocessing.active_children():
      child.kill()  # Data workers would outlive this process.
  # Another thread may hang with the log's lock.
  last = threading.Thread(
    target=_last_words, args=[error], name='last words', daemon=True
  )
  try:
    last.start()
    last.join(_FLUSH)
  except RuntimeError:  # An interpreter that is exiting starts no threads.
    _last_words(error)
  os._exit(exit_code)


def _last_words(error: str) -> None:
  with contextlib.suppress(Exception):
    if error:
      logging.error('%s', error)
  for flush in (logging.flush, sys.stdout.flush, sys.stderr.flush):
    with contextlib.suppress(Exception):
      flush()


def abandon(exit_code: int) -> None:
  """Makes the process exit with this code when the main thread ends.

  JAX's runtime is not shut down; `end_process` says why.
  """

  def end():  # Needed if the exit waits for another thread that hangs.
    threading.main_thread().join()
    time.sleep(_END)
    end_process(exit_code)

  # Python calls the last registered handler first: this one before JAX's.
  atexit.register(end_process, exit_code)
  threading.Thread(target=end, name='end', daemon=True).start()


def delay_abort() -> Callable[[], None]:
  """Delays SIGABRT by some seconds; returns a function that undoes this.

  JAX's runtime aborts the process as soon as process 0 is gone, often
  milliseconds before our own thread can say which process was lost. No option
  of JAX prevents that, see docs/processes.md. The signal handler is the C
  library's `sleep`, because Python code must not run there. Its argument is the
  signal's number, so the aborting thread sleeps for 6 seconds while the other
  threads go on. Then the process aborts as usual.
  """
  try:
    library = ctypes.CDLL(None)
    set_handler = library.signal
    set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
    set_handler.restype = ctypes.c_void_p
    sleep = ctypes.cast(library.sleep, ctypes.c_void_p)
  except (OSError, TypeError, AttributeError):  # Neither Linux nor macOS.
    logging.warning(
      'If process 0 is lost, this process may end without a message.'
    )
    return lambda: None
  previous = set_handler(signal.SIGABRT, sleep)
  return functools.partial(set_handler, signal.SIGABRT, previous)
