"""Reports a loop that hangs, and ends its process after a time limit."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from absl import logging

from vit_jax.runtime import distributed, errors, printable


class _Beat(NamedTuple):
  """The last progress: what finished, and the least limit since then."""

  what: str
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
    self._beat = _Beat('start', 0.0)
    self._end = threading.Event()

  def __enter__(self):
    if limits := [x for x in (self._report_after, self._exit_after) if x > 0]:
      threading.Thread(
        target=self._watch,
        args=[min(1.0, min(limits) / 20)],
        name='watchdog',
        daemon=True,
      ).start()
    return self

  def __exit__(self, *_):
    self._end.set()

  def beat(self, what: str) -> None:
    """Notes that `what` finished, such as 'step 12'; cheap and thread-safe."""
    self._beat = _Beat(what, self._beat.allowed)

  @contextlib.contextmanager
  def allow(self, what: str, seconds: float) -> Iterator[None]:
    """Raises both limits to at least `seconds` inside, for one long call.

    The first step includes compilation, which takes minutes for a large model.
    The step must still have a limit, because a run whose hosts disagree hangs
    there.
    """
    before = self._beat.allowed
    self._beat = _Beat(f'begin of {what}', max(before, seconds))
    try:
      yield
    finally:
      self._beat = _Beat(f'end of {what}', before)

  def _watch(self, tick: float) -> None:
    beat, still, reported = None, 0.0, 0.0
    while not self._end.wait(tick):
      if self._beat is not beat:
        beat, still, reported = self._beat, 0.0, 0.0
        continue
      still += tick  # Not by a clock, which goes on while the process stands.
      if self._exit_after and still >= max(self._exit_after, beat.allowed):
        code = errors.StuckError.exit_code
        distributed.end_process(
          code,
          f'{_described(beat.what, still)}\nThis was the time limit: the'
          f' process ends with exit code {code}. Start it again to go on from'
          ' the last checkpoint.',
        )
      if self._report_after and still >= max(
        reported + self._report_after, beat.allowed
      ):
        reported = still
        # In its own thread: the thread that hangs may hold the log's lock.
        threading.Thread(
          target=self._log, args=[_described(beat.what, still)], daemon=True
        ).start()


def _described(what: str, still: float) -> str:
  # In memory, and without the sources: a disk may be what hangs.
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  lines = []
  for number, frame in sys._current_frames().items():
    lines.append(f'Thread {names.get(number, number)} (latest call first):')
    while frame:
      code = frame.f_code
      lines.append(
        f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'
      )
      frame = frame.f_back
  return (
    f'Nothing finished for {printable.duration(still)}. The last was: {what}.'
    ' The stacks of all threads:\n' + '\n'.join(lines)
  )
