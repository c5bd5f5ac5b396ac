"""Guards: after SIGTERM, SIGHUP or Ctrl-C, all processes stop at the same call.

Here the processes are simulated; `test_preemption_processes.py` has real ones.
"""

import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from vit_jax.runtime import errors, preemption

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 60  # Seconds, generous so that a slow machine does not fail.


@pytest.fixture(autouse=True)
def outer(monkeypatch):
  """Hides Google's cloud; yields the signals that the notice did not catch."""
  monkeypatch.delenv('GCE_METADATA_HOST', raising=False)
  monkeypatch.setattr(preemption, '_PRODUCT_NAME', pathlib.Path('nowhere'))
  caught = []

  def handler(signum, frame):
    caught.append(signum)

  previous = signal.signal(signal.SIGTERM, handler)
  # A process in the background starts with SIGINT ignored, and `nohup` lets it
  # ignore SIGHUP.
  interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
  hangup = signal.signal(signal.SIGHUP, handler)
  yield caught
  assert signal.signal(signal.SIGHUP, hangup) is handler
  assert signal.signal(signal.SIGINT, interrupt) is signal.default_int_handler
  # The notice has removed its own handler.
  assert signal.signal(signal.SIGTERM, previous) is handler
  assert not [
    thread.name
    for thread in threading.enumerate()
    if thread.name.startswith('preemption')
  ]


def _terminate(number=signal.SIGTERM):
  os.kill(os.getpid(), number)


@pytest.mark.parametrize('first', ['SIGTERM', 'SIGHUP'])
def test_a_request_to_stop(outer, caplog, first):
  with preemption.Notice() as notice:
    assert not notice.requested()
    assert notice.reason == ''
    _terminate(signal.Signals[first])
    assert notice.requested()
    assert notice.requested()
    assert notice.reason == first
    assert notice.stopped('saved').exit_code == 75
    # Further signals do no harm while the run saves.
    _terminate(signal.Signals[first])
    _terminate(signal.SIGINT)
  assert outer == []
  assert [record.levelname for record in caplog.records] == ['WARNING'] * 3
  already = 'the run is already saving and stopping.'
  assert caplog.messages == [
    f'{first}: saving after the present step, then stopping.',
    f'{first} again: {already}',
    f'Ctrl-C: {already}',
  ]
  # The previous handler is back.
  _terminate()
  assert outer == [signal.SIGTERM]


def test_an_error_restores_the_handler(outer):
  with pytest.raises(ValueError, match='bad'), preemption.Notice():
    raise ValueError('bad')
  _terminate()
  assert outer == [signal.SIGTERM]


def test_ctrl_c_is_a_notice_with_its_own_exit_code(outer):
  before = signal.getsignal(signal.SIGINT)
  with preemption.Notice() as notice:
    os.kill(os.getpid(), signal.SIGINT)
    assert notice.requested()
    assert notice.reason == 'Ctrl-C'
    error = notice.stopped('saved')
    assert (error.exit_code, str(error)) == (130, 'Ctrl-C: saved')
  assert signal.getsignal(signal.SIGINT) is before
  with preemption.Notice() as notice:
    _terminate()
    assert notice.requested()
    assert notice.stopped('saved').exit_code == 75
  assert outer == []


def test_ctrl_c_in_an_interactive_session_is_a_keyboard_interrupt(monkeypatch):
  monkeypatch.setattr(sys, 'ps1', '>>> ', raising=False)
  with preemption.Notice() as notice:
    notice.begin()
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    time.sleep(0.5)  # The process does not end a moment later, either.


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number):
  before = signal.signal(number, signal.SIG_IGN)
  try:
    with preemption.Notice() as notice:
      signal.raise_signal(number)
      assert not notice.requested()
  finally:
    signal.signal(number, before)


def test_a_run_does_not_begin_after_a_notice():
  with preemption.Notice() as notice:
    _terminate()
    time.sleep(0.5)  # `begin` right after a signal would end the process.
    with pytest.raises(errors.PreemptedError, match='stopped before it began'):
      notice.begin()


_BUSY = """
import hashlib, os, signal, sys, threading, time
from vit_jax.runtime import preemption
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with preemption.Notice() as notice:
  notice.nothing_to_save = sys.argv[1] == 'nothing'
  send = lambda: os.kill(os.getpid(), signal.Signals[sys.argv[2]])
  for delay in (0.5, 1.0):
    threading.Timer(delay, send).start()
  if sys.argv[3] == 'Python':
    time.sleep(60)
  # For minutes no Python code runs in this thread, as in a compilation.
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)
"""


@pytest.mark.parametrize(
  'busy, what, name, code, line',
  [
    ('C++', 'nothing', 'SIGTERM', 75, 'SIGTERM: nothing was trained since'),
    ('Python', 'nothing', 'SIGHUP', 75, 'SIGHUP: nothing was trained since'),
    ('Python', 'nothing', 'SIGINT', 130, 'Ctrl-C: nothing was trained since'),
    ('C++', 'much', 'SIGINT', 130, 'Ctrl-C again: what is not in a checkpoint'),
    ('Python', 'much', 'SIGINT', 130, 'Ctrl-C again: what is not in a check'),
  ],
)
def test_signals_that_end_a_process_at_once(busy, what, name, code, line):
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _BUSY, what, name, busy],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=False,
  )
  assert result.returncode == code
  *before, last = result.stderr.splitlines()
  assert last.startswith(f'ended: {line}')
  assert last.endswith(' Start the same command again to go on.')
  # What came before does not say that the run is saving, or will save.
  assert 'already' not in result.stderr
  assert sum('saving' in each for each in before) == (what == 'much')


def test_the_handler_may_interrupt_logging(caplog):
  handler_of_logs = caplog.handler
  with preemption.Notice() as notice:
    handler_of_logs.acquire()  # The main thread has this lock while it logs.
    try:
      _terminate()
      assert notice.requested()
      assert caplog.messages == []
    finally:
      handler_of_logs.release()
  assert len(caplog.messages) == 1


def test_in_another_thread_a_notice_changes_nothing(outer, monkeypatch):
  monkeypatch.setenv('GCE_METADATA_HOST', 'not asked')
  monkeypatch.setattr(preemption, '_ask', lambda *_: 'TRUE')
  results = []

  def run():
    with preemption.Notice(poll_seconds=0.01) as notice:
      _terminate()
      time.sleep(0.1)
      results.append((notice.requested(), notice.reason))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert results == [(False, '')]
  assert outer == [signal.SIGTERM]


_CLOSED = """
import fcntl, os, signal, termios, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from vit_jax.runtime import command_line, preemption

def main():
  with preemption.Notice() as notice:
    notice.nothing_to_save = os.environ['WHAT'] == 'nothing'
    print('ready', flush=True)
    while not notice.requested():
      time.sleep(0.01)
    print('saving', flush=True)
    raise notice.stopped('saved')

command_line.run(main)
"""


@pytest.mark.parametrize('what', ['nothing', 'much'])
def test_a_closed_terminal_stops_a_run_in_order(what):
  ours, terminal = os.openpty()
  process = subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', _CLOSED],
    **dict.fromkeys(['stdin', 'stdout', 'stderr'], terminal),
    start_new_session=True,
    cwd=ROOT,
    env=os.environ | {'WHAT': what},
  )
  os.close(terminal)
  text = b''
  while b'ready' not in text:
    text += os.read(ours, 1000)
  os.close(ours)
  assert process.wait(PATIENCE) == 75


_FORK = """
import os, signal, time
from vit_jax.runtime import preemption
with preemption.Notice() as notice:
  notice.nothing_to_save = True  # The parent gets no signal, and must not end.
  pid = os.fork()
  if not pid:
    time.sleep(60)
    os._exit(0)
  time.sleep(0.2)
  os.kill(pid, signal.SIGTERM)
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_can_be_ended():
  result = subprocess.run(
    [sys.executable, '-W', 'ignore', '-c', _FORK],
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=PATIENCE,
    check=True,
  )
  assert result.stdout == '-15\n'


# ---- When several processes check each other --------------------------------


class Run:
  """Simulated processes that make the same calls at different speeds.

  In each call process 0 comes first, so that the others get its broadcast.
  """

  def __init__(self, monkeypatch, num_processes=2, check_seconds=2.0):
    fake = types.SimpleNamespace(any_true=self._any_true)
    fake.broadcast = self._broadcast
    monkeypatch.setattr(preemption, 'distributed', fake)
    clock = types.SimpleNamespace(monotonic=lambda: self.clocks[self.process])
    monkeypatch.setattr(preemption, 'time', clock)
    self.agreements = [
      preemption._Agreement(check_seconds) for _ in range(num_processes)
    ]
    self.clocks = [100.0 * i for i in range(num_processes)]
    self.process = 0
    self.checks = []  # Process 0's clock and number of calls at each check.
    self._calls = 0

  def _any_true(self, flag):
    assert flag == self._flags[self.process]
    self._asked.append('any_true')
    return any(self._flags)

  def _broadcast(self, value):
    self._asked.append('broadcast')
    if self.process == 0:
      self._value = value
    return self._value

  def call(self, *seconds, flags=None):
    """Makes a call in each process after `seconds`; returns the answer."""
    self._flags = flags or [False] * len(self.agreements)
    answers, exchanges = [], []
    for i, agreement in enumerate(self.agreements):
      self.process = i
      self._asked = []
      self.clocks[i] += seconds[i % len(seconds)]
      answers.append(agreement.reached(self._flags[i]))
      exchanges.append(self._asked)
    # Otherwise a process would wait forever, or for another kind of answer.
    assert all(each == exchanges[0] for each in exchanges)
    assert len(set(answers)) == 1
    self._calls += 1
    if exchanges[0]:
      self.checks.append((self.clocks[0], self._calls))
    return answers[0]

  def spacings(self):
    calls = [0] + [calls for _, calls in self.checks]
    return [b - a for a, b in itertools.pairwise(calls)]


def test_checks_are_about_two_seconds_apart(monkeypatch):
  run = Run(monkeypatch)
  for _ in range(100):
    run.call(0.125, 0.3)  # Only the clock of process 0 counts.
  # The first check follows a compiled step; then spacings double up to 2 s.
  assert run.spacings() == [1, 1, 2, 4, 8, 16, 16, 16, 16, 16]


def test_a_slow_first_call_is_forgotten(monkeypatch):
  run = Run(monkeypatch)
  run.call(600.0)
  for _ in range(15):
    run.call(0.1)
  assert run.spacings() == [1, 1, 2, 4, 8]


def test_a_slow_call_later_costs_a_few_checks(monkeypatch):
  run = Run(monkeypatch)
  for _ in range(32):
    run.call(0.125)
  assert run.spacings()[-1] == 16
  run.call(60.0)
  for _ in range(15 + 31):
    run.call(0.125)
  # 16 calls took 62 s. Then the spacing starts again at 1.
  assert run.spacings()[-6:] == [16, 1, 2, 4, 8, 16]


@pytest.mark.parametrize('fast', range(1000, 1100, 9))
def test_slow_calls_bring_checks_closer(monkeypatch, fast):
  run = Run(monkeypatch)
  for _ in range(fast):
    run.call(0.001)
  # 2000 calls would fit into two seconds, but 100 is the limit.
  assert run.spacings()[-1] == 100
  before = len(run.checks)
  for _ in range(300):
    run.call(0.3)
  times = [seconds for seconds, _ in run.checks[before - 1 :]]
  waits = [b - a for a, b in itertools.pairwise(times)]
  # The first wait may contain both fast and slow calls.
  assert max(waits[:2]) < 30.1  # A spot machine's notice.
  assert max(waits[2:]) < 2.1


def test_every_call_longer_than_two_seconds_is_a_check(monkeypatch):
  run = Run(monkeypatch)
  for _ in range(20):
    run.call(5.0)
  assert set(run.spacings()) == {1}


def test_checks_with_a_clock_that_does_not_advance(monkeypatch):
  run = Run(monkeypatch)
  for _ in range(40):
    run.call(0.0)
  assert run.spacings() == [1, 1, 2, 4, 8, 16]


def test_a_notice_before_the_first_call(monkeypatch):
  assert Run(monkeypatch).call(9.0, flags=[False, True])


@pytest.mark.parametrize('seed', range(20))
def test_all_processes_agree_at_any_speed(monkeypatch, seed):
  random_ = random.Random(seed)
  count = random_.choice([2, 3, 5])
  run = Run(monkeypatch, count, check_seconds=random_.choice([0.2, 2.0]))
  notices = [random_.randrange(3000) for _ in range(count)]
  pace = [0.01] * count
  for call in range(4000):
    if random_.random() < 0.01:
      pace = [10 ** random_.uniform(-4, 1) for _ in range(count)]
    flags = [call >= notice for notice in notices]
    if run.call(*pace, flags=flags):
      break
  # All stop after the first notice, within one spacing.
  assert min(notices) <= call < min(notices) + 100
  assert max(run.spacings()) <= 100
