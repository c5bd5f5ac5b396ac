"""Ends a run early: in order after a request to stop, or at once if it hangs.

A request is SIGTERM (which clusters send before they kill, and a machine that
shuts down sends to all processes), SIGHUP (of a closed terminal), or Ctrl-C.
Several processes stop after the same step: JAX's preemption service has a
handler of SIGTERM of its own, and tells all processes at which call of
`requested` to stop.
"""

import contextlib
import itertools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator

import jax
from absl import logging
from jax.experimental import multihost_utils

from vit_jax.runtime import distributed, errors, logs, printable

_CTRL_C = 'Ctrl-C'
_NAMES = {
  signal.SIGTERM: 'SIGTERM',
  signal.SIGHUP: 'SIGHUP',
  signal.SIGINT: _CTRL_C,
}
# Counts the calls of `requested` in this process, over all runs: JAX needs a
# number that never falls, and is the same in all processes.
_CALLS = itertools.count(1)


# ---- Requests to stop --------------------------------------------------------


class StopRequested(Exception):
  """Raised inside an evaluation to leave it, so that the run can stop."""


class Notice:
  """While open, signals make `requested` return True.

  Handles SIGTERM, SIGHUP and SIGINT (Ctrl-C), except those that the process
  ignores, if it is opened in the main thread. Python allows no handlers in
  other threads: there the signals keep their meaning. A second SIGTERM does not
  end the process. A second Ctrl-C ends it at once, whatever the main thread is
  doing. In an interactive Python, Ctrl-C keeps its usual meaning.

  A notice may be open around several consecutive runs.

  Attributes:
    reason: why the run should stop: 'SIGTERM', 'SIGHUP' or 'Ctrl-C'; '' if it
      should go on.
    nothing_to_save: whether a signal ends a single process at once, even while
      its main thread compiles.
  """

  def __init__(self):
    self.reason = ''
    self.nothing_to_save = False
    self._requested = self._several = False
    self._stack = contextlib.ExitStack()

  def __enter__(self):
    # Unlike the number of processes, this touches no device.
    self._several = jax.distributed.is_initialized()
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
    received, sent = os.pipe()
    os.set_blocking(sent, False)
    reading = threading.Thread(target=self._read, args=[received, handled])
    reading.daemon = True
    reading.start()
    self._stack.callback(reading.join)
    self._stack.callback(os.close, sent)  # Ends the thread.
    previous = signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    self._stack.callback(signal.set_wakeup_fd, previous)
    for number in handled:
      # None means a handler that Python did not set and cannot restore.
      before = signal.signal(number, lambda *_: None) or signal.SIG_DFL
      self._stack.callback(signal.signal, number, before)
    return self

  def __exit__(self, *_):
    self._stack.close()

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
    # restart the others. JAX does not tell which process received the SIGTERM.
    by_user = distributed.any_true(self.reason == _CTRL_C)
    self.reason = _CTRL_C if by_user else self.reason or 'SIGTERM'
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

  def _read(self, received: int, handled: Collection[int]) -> None:
    """Acts on signals as they come; a handler must not log, for example."""
    came = set()
    with open(received, 'rb', buffering=0) as pipe:
      while numbers := pipe.read(64):
        for number in filter(handled.__contains__, numbers):
          self._act(number, came)
          came.add(number)

  def _act(self, number: int, came: Collection[int]) -> None:
    name = _NAMES[number]
    if number == signal.SIGHUP:
      logs.leave_closed_terminal()
    self.reason = self.reason or name
    code = _kind(name).exit_code
    if self.nothing_to_save and not self._several:
      distributed.end_process(
        code, f'{name}: ended; nothing was trained since the start.'
      )
    if number == signal.SIGINT and number in came:
      distributed.end_process(
        code, f'{name} again: ended; what is not in a checkpoint is lost.'
      )
    if came:
      logging.warning('%s: already saving and stopping.', name)
    elif self._several:
      logging.warning('%s: telling the other processes.', name)
      os.kill(os.getpid(), signal.SIGTERM)  # JAX's handler tells them.
    else:
      logging.warning('%s: saving, then stopping.', name)


def _kind(reason: str) -> type[errors.PreemptedError]:
  """Returns the error, and so the exit code, of a reason to stop."""
  if reason == _CTRL_C:
    return errors.InterruptedByUserError
  return errors.PreemptedError


# ---- Loops that hang ---------------------------------------------------------


class Watchdog:
  """While open, a thread that expects regular calls of `beat`.

  The thread keeps running while other threads hang in C++, such as in a
  collective whose peer is gone: these calls release Python's interpreter lock.
  A thread that hangs with that lock stops the watchdog too; only a supervisor
  outside of the process helps then. Time in which the whole process stood still
  (SIGSTOP, a suspended machine) does not count. In a debugger, set the limit to
  0.
  """

  def __init__(self, exit_after: float):
    """Prepares the watchdog; the context starts it.

    Args:
      exit_after: seconds without a beat after which the process logs the last
        beat and the stacks of all threads, and exits at once with
        `StuckError`'s exit code. It does not raise, because a main thread that
        hangs in C++ sees no exception. 0: never.
    """
    self._exit_after = exit_after
    # What finished last, and the least limit since then.
    self._beat = 'start', 0.0
    self._end = threading.Event()

  def __enter__(self):
    if self._exit_after:
      tick = min(1.0, self._exit_after / 20)
      threading.Thread(target=self._watch, args=[tick], daemon=True).start()
    return self

  def __exit__(self, *_):
    self._end.set()

  def beat(self, what: str) -> None:
    """Notes that `what` finished, such as 'step 12'; cheap and thread-safe."""
    self._beat = what, self._beat[1]

  @contextlib.contextmanager
  def allow(self, what: str, seconds: float) -> Iterator[None]:
    """Raises the limit to at least `seconds` inside, for one long call.

    The first step includes compilation, which takes minutes for a large model.
    The step must still have a limit, because a run whose hosts disagree hangs
    there.
    """
    _, before = self._beat
    self._beat = f'begin of {what}', max(before, seconds)
    try:
      yield
    finally:
      self._beat = f'end of {what}', before

  def _watch(self, tick: float) -> None:
    beat, still = None, 0.0
    while not self._end.wait(tick):
      if self._beat is not beat:
        beat, still = self._beat, 0.0
        continue
      what, allowed = beat
      still += tick  # Not by a clock, which goes on while the process stands.
      if still >= max(self._exit_after, allowed):
        code = errors.StuckError.exit_code
        distributed.end_process(
          code,
          f'{_described(what, still)}\nThis was the time limit: the'
          f' process ends with exit code {code}. Start it again to go on from'
          ' the last checkpoint.',
        )


def _described(what: str, still: float) -> str:
  # In memory, and without the source's lines, because a disk may be what hangs.
  stacks = []
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  for number, frame in sys._current_frames().items():
    stacks.append(f'Thread {names.get(number, number)}, the last call first:')
    stacks += (
      f'  File "{one.f_code.co_filename}", line {line} in {one.f_code.co_name}'
      for one, line in traceback.walk_stack(frame)
    )
  return '\n'.join(
    [
      f'Nothing finished for {printable.duration(still)}. The last was: {what}.'
      ' The stacks of all threads:',
      *stacks,
    ]
  )
