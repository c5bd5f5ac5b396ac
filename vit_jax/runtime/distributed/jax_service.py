"""JAX's own distributed runtime: its start, its end, and how it aborts."""

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
_INITIALIZE = 120.0  # All processes are there when it starts.
_SHUTDOWN = 30  # All processes are done when it ends.
_END = 3.0  # From the end of the main thread to that of the process.
_FLUSH = 2.0  # For what was logged and printed to be written.


def start(place: cluster.Place, lost_timeout: float) -> None:
  """Starts JAX's runtime; all processes must call it at about the same time.

  It supervises the processes too, but names none. Its limits are longer than
  ours, so that ours comes first. Its handler of SIGTERM would take the signal
  away from `preemption`, so it is turned off. Orbax then knows of no
  preemption.

  When it does not start in time, the process ends with the exit code of
  `HostLostError`: JAX's own limit would abort it.

  Raises:
    HostLostError: it did not start, though all processes are there.
  """
  problem = (
    f"JAX's runtime did not start at {place.coordinator_address}, though all"
    f' {place.num_processes} processes are there%s. If it happens again, see'
    ' whether they can reach that port of process 0, and whether another'
    ' program holds it.'
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
  # Of the network or the port. Wrong use is a RuntimeError of Python's own.
  except jax.errors.JaxRuntimeError as error:
    raise errors.HostLostError(problem % f' ({error})') from error
  finally:
    limit.cancel()


def stop() -> None:
  """Ends JAX's runtime in all processes together."""
  try:
    jax.distributed.shutdown()
  except Exception as error:  # The work is done.
    logging.warning('JAX did not shut down in order: %s', error)


def end_process(exit_code: int, error: str = '') -> None:
  """Ends this process now, without what Python and JAX do at the end.

  JAX would wait for the other processes there, and abort. Works whatever other
  threads hang in, unless they hold Python's interpreter lock. `error` is logged
  first.
  """
  with contextlib.suppress(Exception):
    for child in multiprocessing.active_children():
      child.kill()  # Data workers would outlive this process.
  # What hangs may hold the lock of the logs.
  last = threading.Thread(
    target=_last_words, args=[error], name='last words', daemon=True
  )
  try:
    last.start()
    last.join(_FLUSH)
  except RuntimeError:  # The interpreter ends, and starts no thread any more.
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
  """Sees to it that the process ends when the main thread does, with this code.

  JAX's runtime is left as it is; `end_process` says why.
  """

  def end():  # If it hangs on another thread, after the main one.
    threading.main_thread().join()
    time.sleep(_END)
    end_process(exit_code)

  # The last registered is the first called: before JAX's own.
  atexit.register(end_process, exit_code)
  threading.Thread(target=end, name='end', daemon=True).start()


def delay_abort() -> Callable[[], None]:
  """Delays SIGABRT by some seconds; returns a function that ends that.

  JAX's runtime ends the process with it as soon as process 0 is gone: often
  milliseconds before our own thread can say which process was lost. There is
  no way to tell it otherwise, see docs/processes.md. The handler is the C
  library's `sleep`, called with the signal's number as its argument: 6 seconds
  in the thread that aborts, and the others go on. It may be called in a signal
  handler, which Python code may not. After it the process aborts as ever.
  """
  try:
    library = ctypes.CDLL(None)
    set_handler = library.signal
    set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
    set_handler.restype = ctypes.c_void_p
    sleep = ctypes.cast(library.sleep, ctypes.c_void_p)
  except (OSError, TypeError, AttributeError):  # Not on Linux or macOS.
    logging.warning('A lost process 0 may end this one without a message.')
    return lambda: None
  previous = set_handler(signal.SIGABRT, sleep)
  return functools.partial(set_handler, signal.SIGABRT, previous)
