"""Reports a loop that hangs, and ends its process after a time limit."""

import contextlib
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from absl import logging

from vit_jax.runtime import distributed, errors, progress

# Seconds that the last log message may take.
_LOG_LIMIT = 10.0


class _Beat(NamedTuple):
  """The last progress: what finished, when, and the least limit since then."""

  what: str
  time: float
  allowed: float


class Watchdog:
  """While open, a thread that expects regular calls of `beat`.

  The thread keeps running while other threads hang in C++, such as in a
  collective whose peer is gone: these calls release Python's interpreter lock.
  A thread that hangs with that lock stops the watchdog too; only a supervisor
  outside of the process helps then. Time in which the whole process stood still
  (SIGSTOP, a suspended machine) does not count. In a debugger, set both limits
  to 0.
  """

  def __init__(
    self,
    report_after: float,
    exit_after: float,
    log: Callable[[str], None] = lambda text: logging.error('%s', text),
  ):
    """Prepares the watchdog; the context starts it.

    Args:
      report_after: seconds without a beat after which `log` gets the last beat
        and the stacks of all threads; repeated at this interval. 0: never.
      exit_after: seconds without a beat after which the process reports and
        exits at once with `StuckError`'s exit code. It does not raise, because
        a main thread that hangs in C++ sees no exception. 0: never.
      log: writes a text of several lines.
    """
    self._report_after, self._exit_after = report_after, exit_after
    self._log = log
    self._allowed = 0.0
    self._beat = _Beat('nothing', time.monotonic(), 0.0)
    self._end = threading.Event()
    self._thread = None

  def __enter__(self):
    limits = [x for x in (self._report_after, self._exit_after) if x > 0]
    self.beat('start')
    if limits:
      tick = min(1.0, min(limits) / 20)
      self._thread = threading.Thread(
        target=self._watch, args=(tick,), name='watchdog', daemon=True
      )
      self._thread.start()
    return self

  def __exit__(self, *_):
    self._end.set()
    if self._thread:
      self._thread.join()

  def beat(self, what: str) -> None:
    """Notes that `what` finished, such as 'step 12'; cheap and thread-safe."""
    # A single assignment, so that the thread never sees a partial update.
    self._beat = _Beat(what, time.monotonic(), self._allowed)

  @contextlib.contextmanager
  def allow(self, what: str, seconds: float) -> Iterator[None]:
    """Raises both limits to at least `seconds` inside, for one long call.

    The first step includes compilation, which takes minutes for a large model.
    The step must still have a limit, because a run whose hosts disagree hangs
    there.
    """
    before = self._allowed
    self._allowed = max(before, seconds)
    self.beat(f'begin of {what}')
    try:
      yield
    finally:
      self._allowed = before
      self.beat(f'end of {what}')

  def _watch(self, tick: float) -> None:
    last, still, reported = self._beat, 0.0, 0.0
    woken = time.monotonic()
    while not self._end.wait(tick):
      now = time.monotonic()
      # After much more than a tick, the whole process has stood still.
      passed, woken = min(now - woken, 2 * tick), now
      beat = self._beat
      if beat is not last:
        if reported:
          pause = progress.duration(beat.time - last.time)
          self._write(f'The run goes on after {pause}: {beat.what}.')
        last, still, reported = beat, 0.0, 0.0
        continue
      still += passed
      exit_after = max(self._exit_after, beat.allowed)
      report_after = max(self._report_after, beat.allowed - reported)
      if self._exit_after and still >= exit_after:
        self._exit(beat)
      elif self._report_after and still - reported >= report_after:
        reported = still
        self._write(beat)

  def _write(self, what: str | _Beat, more: str = '') -> threading.Thread:
    """Logs in a thread of its own, so that the watchdog itself cannot hang.

    The thread that hangs may hold the log's lock. The disk with the source code
    for the stacks may hang, too.
    """

    def write():
      self._log((what if isinstance(what, str) else _describe(what)) + more)
      for handler in logging.get_absl_logger().handlers:
        handler.flush()
      logging.flush()

    thread = threading.Thread(target=write, name='watchdog-log', daemon=True)
    thread.start()
    return thread

  def _exit(self, beat: _Beat) -> None:
    code = errors.StuckError.exit_code
    end = (
      f'\nThis was the time limit: the process ends with exit code {code}.'
      ' Start it again to go on from the last checkpoint.'
    )
    self._write(beat, end).join(_LOG_LIMIT)
    distributed.end_process(code)


def _describe(beat: _Beat) -> str:
  seconds = time.monotonic() - beat.time
  since = time.localtime(time.time() - seconds)
  return (
    f'Nothing finished for {progress.duration(seconds)}, since'
    f' {time.strftime("%Y-%m-%d %H:%M:%S", since)}. The last was: {beat.what}.'
    f' The stacks of all threads:\n{stacks()}'
  )


def stacks() -> str:
  """Formats all threads' stacks, the main thread first; joins equal stacks."""
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  # Threads that C++ started have no name in `threading`.
  threads = [
    (names.get(ident, f'unnamed {ident}'), frame)
    for ident, frame in sys._current_frames().items()
  ]
  main = threading.main_thread().name
  groups = defaultdict(list)
  for name, frame in sorted(threads, key=lambda x: (x[0] != main, x[0])):
    if not name.startswith('watchdog'):
      groups[''.join(traceback.format_stack(frame))].append(name)
  return '\n'.join(
    f'Thread {", ".join(threads)}:\n{stack}'
    for stack, threads in groups.items()
  )
