"""Guards (slow): runs that are interrupted in any way lose nothing.

Each run is `python -m vit_jax.main` on simulated CPU devices. It is interrupted
several times, at moments that a seed draws, and each time the same command
starts again. Exit codes and limits are those that docs/pods.md promises; a
launch resumes at the newest intact checkpoint, and names damaged ones. At last
the run goes on undisturbed, and must end bitwise as one that never was
interrupted.
"""

import dataclasses
import functools
import random
import re
import shutil
import signal
import time

import pytest

from tests.faults import comparing, damage, launching

_INTERRUPTIONS = 4  # Of a run.
# Seconds to add to a limit on a busy machine; to save and stop; to stop.
_MARGIN, _SAVE_AND_STOP, _AT_ONCE = 25, 90, 10
# A collective failed, or JAX aborted the process.
_LOST = {76, -signal.SIGABRT}
# A save ends at the latest when the save after the next step line begins.
_MOST_LOST = 2 * launching.SAVE_EVERY
_READY = re.compile(r'Resuming \S+ from step (\d+)\.|(Fresh weights)\.')
_DAMAGED = re.compile(r'The checkpoint \S+/(\d+) is damaged')


@dataclasses.dataclass(frozen=True)
class Fault:
  """A kind of interruption.

  Attributes:
    number: the signal.
    moment: when it is sent: at the 'start' (within seconds), on the 'way' (at
      any time), while 'saving', with two 'checkpoints', or at the 'end'.
    one: whether only one process of several gets it.
    code: the exit code of each process; None: those of processes that lost
      another one, and of the victims -9.
    at_once: whether the run ends without a save.
  """

  number: signal.Signals
  moment: str = 'way'
  one: bool = False
  code: int | None = None
  at_once: bool = False


_KILL, _TERM, _INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
FAULTS = {
  'kill-one': Fault(_KILL, one=True),
  'kill-all': Fault(_KILL),
  'kill-saving': Fault(_KILL, 'saving'),
  'kill-ending': Fault(_KILL, 'end'),
  'freeze-one': Fault(signal.SIGSTOP, one=True),
  'sigterm-one': Fault(_TERM, one=True, code=75),
  'sigterm-all': Fault(_TERM, code=75),
  'sigterm-early': Fault(_TERM, 'start', code=75, at_once=True),
  'ctrl-c-one': Fault(_INT, one=True, code=130),
  'ctrl-c': Fault(_INT, code=130),
  'ctrl-c-twice': Fault(_INT, code=130, at_once=True),
  # After a kill, the newest checkpoint is damaged in one of these ways.
  **{how: Fault(_KILL, 'checkpoints') for how in damage.WAYS},
}
CASES = [
  pytest.param(kind, layout, id=f'{kind}-{layout}')
  for kind, fault in FAULTS.items()
  for layout in launching.LAYOUTS
  if layout.processes > 1 or not fault.one
]


class Run:
  """A run's work directory between launches."""

  def __init__(self, layout, folder):
    self.layout, self.workdir = layout, folder / 'run'
    self.damaged = set()  # Steps.
    self._folder, self._launches = folder, 0
    folder.mkdir(parents=True, exist_ok=True)

  def start(self) -> launching.Launch:
    """Starts the run's command."""
    self._before = damage.complete_steps(self.workdir)
    self._launches += 1
    return launching.Launch(
      launching.arguments(self.layout),
      self.workdir,
      self._folder / f'log{self._launches}',
      processes=self.layout.processes,
      devices=self.layout.devices,
    )

  def check(self, launch) -> None:
    """Asserts that a launch which ended began where it should, and saved."""
    output, now = launch.output(), damage.complete_steps(self.workdir)
    reported = {int(step) for step in _DAMAGED.findall(output)}
    assert reported <= self.damaged
    beginnings = set(_READY.findall(output))
    assert len(beginnings) <= 1, beginnings
    newest = max(set(self._before) - self.damaged, default=0)
    for text, _ in beginnings:
      # Some damage has no effect.
      start = int(text or 0)
      assert start in {newest, *self.damaged}
      assert reported >= {step for step in self._before if step > start}
      newest, self.damaged = start, set()
    last = launch.steps()[-1:] or [0]
    assert max([0, *now]) >= max(newest, last[0] - _MOST_LOST)

  def finish(self) -> None:
    """Runs to the end undisturbed."""
    with self.start() as launch:
      assert not any(launch.wait(launching.PATIENCE)), launch.output()
      self.check(launch)


@functools.cache
def _uninterrupted(layout, folder):
  run = Run(layout, folder / f'uninterrupted-{layout}')
  run.finish()
  return run.workdir


@pytest.fixture
def expected(tmp_path_factory):
  """Returns a function: the work directory of an uninterrupted run."""
  folder = tmp_path_factory.getbasetemp()
  return lambda layout: _uninterrupted(layout, folder)


def _reached(run, launch, moment, rng) -> bool:
  """Waits for a moment; returns False if the launch ended before it."""
  lines = rng.randint(0, 3)

  def holds():
    if moment == 'checkpoints':
      enough = len(damage.complete_steps(run.workdir)) > 1
      return enough and _READY.search(launch.output(0))
    if moment == 'end':
      return run.layout.steps in damage.complete_steps(run.workdir)
    if len(launch.steps()) < lines:
      return False
    return moment != 'saving' or launch.is_saving()

  if moment == 'start':
    return launch.until(lambda: True, rng.uniform(0.5, 4))
  if moment == 'way':
    # Without a step line: while the run starts, compiles or restores.
    return launch.until(holds, rng.uniform(0, 0.5 if lines else 8))
  return launch.until(holds, rng.choice([0, 0.01, 0.05, 0.2]))


def _limit(run, launch) -> float:
  """Returns how many seconds other processes may outlive a lost one."""
  joined = all(
    re.search(r'All \d+ processes are there', launch.output(index))
    for index in range(run.layout.processes)
  )
  known = launching.LOST_TIMEOUT if joined else launching.START_TIMEOUT
  return known + _MARGIN


def _interrupt(run, fault, rng) -> bool:
  """Interrupts a run; returns False if it finished before."""
  every = range(run.layout.processes)
  with run.start() as launch:
    if not _reached(run, launch, fault.moment, rng):
      assert not any(launch.wait(launching.PATIENCE)), launch.output()
      run.check(launch)
      return False
    victims = [rng.choice(every)] if fault.one else every
    limit = _limit(run, launch)
    launch.send(fault.number, victims)
    # 0: the run had just finished.
    allowed = [
      _LOST | {0} | ({-9} if i in victims else set())
      if fault.code is None
      else {0, fault.code}
      for i in every
    ]
    if fault.number == signal.SIGSTOP:
      others = set(every) - set(victims)
      deadline = time.monotonic() + limit
      while others & set(launch.running()):
        assert time.monotonic() < deadline, 'they wait for a frozen process'
        time.sleep(0.05)
      launch.send(signal.SIGCONT, victims)
    elif fault.at_once:
      if fault.number == _INT:
        time.sleep(0.2)
        launch.send(_INT, launch.running())
      # -15: Python itself had not started.
      allowed = [codes | {-15} for codes in allowed]
      if len(every) > 1:  # A process may end before it has told the others.
        allowed = [codes | _LOST for codes in allowed]
      else:
        limit = _AT_ONCE
    elif fault.code:
      limit = _SAVE_AND_STOP
    codes = launch.wait(limit)
    for code, choices in zip(codes, allowed, strict=True):
      assert code in choices, (codes, launch.output())
    run.check(launch)
    stopped = re.findall(r'stopped after step (\d+), which', launch.output())
    if fault.code and not fault.at_once and stopped:
      steps = damage.complete_steps(run.workdir)
      assert set(stopped) == {str(steps[-1])}
  return any(codes)


@pytest.mark.slow  # Takes hours: each run is started many times.
@pytest.mark.parametrize('kind, layout', CASES)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
  kind, layout, expected, tmp_path
):
  run, rng = Run(layout, tmp_path), random.Random(f'{kind} {layout}')
  for _ in range(_INTERRUPTIONS):
    if not _interrupt(run, FAULTS[kind], rng):
      break
    if kind in damage.WAYS:
      steps = damage.complete_steps(run.workdir)
      # One must be left to fall back to.
      if len(set(steps) - run.damaged) > 1:
        newest = run.workdir / 'checkpoints' / str(steps[-1])
        damage.damage(newest, kind, rng)
        run.damaged.add(steps[-1])
  run.finish()
  comparing.assert_same(run.workdir, expected(layout), layout.steps)


@pytest.mark.slow
@pytest.mark.parametrize('layout', launching.LAYOUTS, ids=str)
@pytest.mark.parametrize('left', [0, 4096, 32768])
def test_a_full_disk_is_named_and_loses_nothing(
  left, layout, expected, tmp_path
):
  if reason := damage.why_no_disk(tmp_path / 'disk'):
    pytest.skip(reason)
  disk = damage.Disk(tmp_path / 'small')
  try:
    run = Run(layout, tmp_path / 'small')
    with run.start() as launch:
      assert launch.until(launch.steps, 0.2)
      while launch.running():  # It frees space: it removes old checkpoints.
        disk.fill(left)
        time.sleep(0.02)
      assert set(launch.wait(1)) <= {1} | _LOST
      assert 'No space ' in launch.output()
      assert 'Traceback' not in launch.output()
    disk.empty()
    run.finish()
    shutil.copytree(run.workdir, tmp_path / 'copy')
  finally:
    disk.close()
  comparing.assert_same(tmp_path / 'copy', expected(layout), layout.steps)


# What finds out whether something is lost -------------------------------------


def test_rows_are_compared_except_where_a_restart_splits_a_mean():
  def row(step, loss, norm=1.0):
    return {'step': step, 'train/loss': loss, 'train/grad_norm': norm}

  evaluation = {'step': 10, 'test/loss': 0.5}
  expected = [row(5, 3.0), row(10, 2.0), evaluation]
  comparing.assert_same_rows(expected, expected)
  # A save at step 7 splits the mean of steps 6 to 10, but nothing else.
  split = [row(5, 3.0), row(7, 2.5), row(10, 1.5), evaluation]
  comparing.assert_same_rows(split, expected)
  for wrong in (
    expected[:2],
    [row(5, 3.1), *expected[1:]],
    [*split[:2], row(10, 1.5, norm=1.1), evaluation],
    [*split[:3], evaluation | {'test/loss': 0.4}],
  ):
    with pytest.raises(AssertionError):
      comparing.assert_same_rows(wrong, expected)
