"""Injects faults into runs, and judges the immediate consequences."""

import random
import re
import signal
import time

from tests.faults import between, launching
from tests.faults.damage import complete_steps, damage, listing
from tests.faults.plan import AFTER_KILL, AT_ONCE, DAMAGES, Fault, Moment
from tests.faults.runs import Record, Run

# Seconds to add to a limit on a busy machine.
_MARGIN = 25
_SAVE_AND_STOP = 90
_AT_ONCE = 10
_PREEMPTED, _BY_USER = 75, 130  # See vit_jax/runtime/errors.py.
# A collective failed, or JAX aborted the process.
_LOST = {76, -signal.SIGABRT}
_ORPHANS = 5  # Seconds for data workers to notice that their parent is gone.
_JOINED = re.compile(r'All \d+ processes are there')
_READY = re.compile(r'Resuming \S+ from|Fresh weights')


def interrupt(run: Run, fault: Fault) -> Record | None:
  """Injects a planned fault.

  Returns:
    A record of what was done and found; None if the run finished before.
  """
  record = Record(fault)
  rng = random.Random(fault.seed)
  if fault.kind == 'read-only':
    happened = _mount_read_only(run, record)
  elif fault.kind == 'disk-full':
    happened = _fill_disk(run, record, rng)
  elif fault.kind == 'nan-stop':
    happened = _stop_at_nan(run, record, rng)
  elif fault.kind.startswith(('sigterm', 'ctrl-c')):
    happened = _signal(run, record)
  elif fault.kind == 'second-copy':
    happened = start_twice(run, record)
  elif fault.kind == 'freeze-one':
    happened = _freeze(run, record)
  else:
    happened = _kill(run, record, rng)
  return record if happened else None


def reached(launch: launching.Launch, moment: Moment) -> bool:
  """Waits for a moment; returns False if the launch ended before it."""
  pause = 0.002 if moment.event == 'saving' else 0.02
  return launch.until(lambda: _holds(launch, moment), moment.delay, pause)


def _holds(launch, moment) -> bool:
  if moment.event == 'start':
    return True
  if moment.event == 'saving':
    return len(launch.saves()) >= moment.count
  if moment.event == 'last':
    return moment.count in complete_steps(launch.workdir)
  if moment.event == 'checkpoints':
    return len(complete_steps(launch.workdir)) >= moment.count and (
      _READY.search(launch.output(0)) is not None
    )
  patterns = {
    'built': re.compile(' parameters '),
    'restored': _READY,
    'step': launching.STEP_LINE,
  }
  found = patterns[moment.event].findall(launch.output(0))
  return len(found) >= moment.count


def _judge_early_end(
  run: Run, launch: launching.Launch, record: Record
) -> bool:
  """Judges a launch that ended before the moment came.

  Returns:
    Whether there is a problem to report.
  """
  codes = launch.wait(1)
  record.problems += run.look_at(launch)
  record.codes = tuple(codes)
  if any(codes):
    record.problems.append(f'ended with {codes} before {record.fault.moment}')
    return True
  run.finished = True
  # Nothing was done to the run, but problems must be reported.
  return bool(record.problems)


def _target_name(fault: Fault) -> str:
  return 'all' if fault.process is None else f'process {fault.process}'


def _time_and_step(launch: launching.Launch) -> str:
  return f'{launch.seconds():.1f} s, step {launch.last_step()}'


def _wait_and_judge(run, launch, record, limit, allowed, struck=None) -> None:
  """Waits for the end of a launch, and compares the exit codes.

  Args:
    run: the interrupted run.
    launch: its launch.
    record: gets the results.
    limit: seconds to wait.
    allowed: the allowed exit codes of each process.
    struck: when the interruption was, in seconds of the launch; None: now.
  """
  struck = launch.seconds() if struck is None else struck
  codes = launch.wait(limit)
  record.codes = tuple(codes)
  record.done += f', ended after {max(launch.last_end() - struck, 0):.1f} s'
  for index, (code, choices) in enumerate(zip(codes, allowed, strict=True)):
    if code not in choices and index not in launch.overdue:
      last = launch.output(index).splitlines()[-1:]
      record.problems.append(
        f'process {index} ended with {code}, not {sorted(choices)}: {last}'
      )
  record.problems += run.look_at(launch)


def _survivors_limit(launch, victim) -> float:
  """Returns how many seconds the other processes may outlive the victim."""
  joined = all(
    _JOINED.search(launch.output(index))
    for index in range(len(launch.processes))
  )
  known = launching.LOST_TIMEOUT if joined else launching.START_TIMEOUT
  return known + _MARGIN


def _kill(run: Run, record: Record, rng: random.Random) -> bool:
  fault = record.fault
  extra = ['--config.data.workers=2'] if fault.kind == 'orphans' else []
  with run.start(extra=extra) as launch:
    if not reached(launch, fault.moment):
      return _judge_early_end(run, launch, record)
    limit = _survivors_limit(launch, fault.process)
    record.done = (
      f'SIGKILL to {_target_name(fault)} at {_time_and_step(launch)}'
    )
    children = launch.children()
    launch.send(signal.SIGKILL, fault.process)
    if fault.kind == 'orphans':
      _expect_gone(children, record)
    # 0: the run had just finished.
    allowed = [
      {-9, 0} if fault.process in (None, index) else _LOST | {0}
      for index in range(run.layout.processes)
    ]
    _wait_and_judge(run, launch, record, limit, allowed)
  if not any(record.codes):
    run.finished = True
    return bool(record.problems)
  if fault.kind in DAMAGES:
    _damage(run, record, rng)
  if fault.kind in AFTER_KILL:
    between.DONE[fault.kind](run, record, rng)
  return True


def _expect_gone(children: list[int], record: Record) -> None:
  record.done += f', with {len(children)} children'
  if not children:
    record.problems.append('it had no data workers')
  deadline = time.monotonic() + _ORPHANS
  while left := [pid for pid in children if launching.is_alive(pid)]:
    if time.monotonic() > deadline:
      record.problems.append(f'{left} live on for {_ORPHANS} s')
      return
    time.sleep(0.1)


def _damage(run: Run, record: Record, rng: random.Random) -> None:
  steps = complete_steps(run.workdir)
  if len(set(steps) - run.damaged) < 2:
    record.done += ', no damage: there would be nothing to fall back to'
    return
  path = run.workdir / 'checkpoints' / str(steps[-1])
  record.done += f'; {damage(path, record.fault.kind, rng)}'
  run.damaged.add(steps[-1])
  record.damaged = steps[-1]


def _signal(run: Run, record: Record) -> bool:
  fault = record.fault
  by_user, early = fault.kind.startswith('ctrl-c'), fault.kind.endswith('early')
  number = signal.SIGINT if by_user else signal.SIGTERM
  # 0: the run had just finished. -15: Python itself had not started.
  allowed = {_BY_USER if by_user else _PREEMPTED, -15 if early else 0}
  limit = _SAVE_AND_STOP
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _judge_early_end(run, launch, record)
    record.done = (
      f'{number.name} to {_target_name(fault)} at {_time_and_step(launch)}'
    )
    launch.send(number, fault.process)
    if fault.kind in AT_ONCE:
      if not early:
        time.sleep(0.2)
        launch.send(number, fault.process)
      limit = _AT_ONCE
      if launch.several:  # A process may end before it has notified the others.
        allowed |= _LOST
        limit = _survivors_limit(launch, None)
    _wait_and_judge(
      run, launch, record, limit, [allowed] * run.layout.processes
    )
    if not any(record.codes):
      run.finished = True
      return bool(record.problems)
    if fault.kind not in AT_ONCE:
      _expect_saved(run, launch, record)
  return True


def _expect_saved(run: Run, launch: launching.Launch, record: Record) -> None:
  if 'nothing was trained since the start' in launch.output():
    record.done += ', nothing to save'
    return
  saved = re.findall(r'stopped after step (\d+), which was', launch.output())
  steps = complete_steps(run.workdir)
  if set(saved) != {str(steps[-1]) if steps else ''}:
    record.problems.append(f'it says that {saved} was saved: {steps}')
  record.done += f', saved {saved[0] if saved else "nothing"}'


def start_twice(run: Run, record: Record) -> bool:
  """Starts a second copy, which must end; then kills the first one."""
  with run.start() as launch:
    if not reached(launch, record.fault.moment):
      return _judge_early_end(run, launch, record)
    record.done = f'a second copy at {_time_and_step(launch)}'
    launch.send(signal.SIGSTOP)
    with run.copy() as copy:
      copy.wait(launching.FAIL)
      between.expect_message(
        copy, record, f'{run.workdir} is in use by process '
      )
    launch.send(signal.SIGCONT)
    launch.send(signal.SIGKILL)
    allowed = [{-9}] * run.layout.processes
    _wait_and_judge(run, launch, record, _MARGIN, allowed)
  return True


def _freeze(run: Run, record: Record) -> bool:
  fault = record.fault
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _judge_early_end(run, launch, record)
    limit = _survivors_limit(launch, fault.process)
    record.done = (
      f'SIGSTOP to {_target_name(fault)} at {_time_and_step(launch)}'
    )
    launch.send(signal.SIGSTOP, fault.process)
    struck = launch.seconds()
    deadline = time.monotonic() + limit
    others = set(range(run.layout.processes)) - {fault.process}
    while time.monotonic() < deadline and any(
      launch.codes()[index] is None for index in others
    ):
      time.sleep(0.05)
    late = [index for index in others if launch.codes()[index] is None]
    if late:
      record.problems.append(f'{late} waited more than {limit} s for it')
    launch.send(signal.SIGCONT, fault.process)
    allowed = [_LOST] * run.layout.processes
    _wait_and_judge(run, launch, record, limit, allowed, struck)
  return True


def _fill_disk(run: Run, record: Record, rng: random.Random) -> bool:
  fault = record.fault
  left = rng.choice([0, 4096, 32768])
  if fault.moment.event == 'start':
    run.disk.fill(left)
    record.done = f'disk full but for {left} bytes before the launch'
  try:
    with run.start() as launch:
      if fault.moment.event != 'start':
        if not reached(launch, fault.moment):
          return _judge_early_end(run, launch, record)
        record.done = (
          f'disk full but for {left} bytes at {_time_and_step(launch)}'
        )
      struck = launch.seconds()
      deadline = time.monotonic() + launching.FAIL
      while launch.running() and time.monotonic() < deadline:
        run.disk.fill(left)  # The run frees space: it removes old checkpoints.
        time.sleep(0.02)
      _expect_error(run, launch, record, 'No space ', struck)
  finally:
    run.disk.empty()
  return True


def _mount_read_only(run: Run, record: Record) -> bool:
  before = listing(run.disk.folder)
  run.disk.read_only(True)
  try:
    record.done = 'mounted read-only before the launch'
    with run.start() as launch:
      launch.wait(launching.FAIL)
      _expect_error(run, launch, record, 'Read-only file system')
  finally:
    run.disk.read_only(False)
  if listing(run.disk.folder) != before:
    record.problems.append('files changed')
  return True


def _stop_at_nan(run: Run, record: Record, rng: random.Random) -> bool:
  steps = complete_steps(run.workdir)
  bad = (steps[-1] if steps else 0) + rng.randint(1, 12)
  if bad > run.layout.steps:
    return False
  record.done = f'NaN at step {bad}, twice'
  for _ in range(2):
    with run.start(nan_step=bad) as launch:
      launch.wait(launching.FAIL)
      _expect_error(run, launch, record, f'at step {bad} ')
      if complete_steps(run.workdir)[-1:] >= [bad]:
        record.problems.append('a step with NaN was saved')
  return True


def _expect_error(run, launch, record, words, struck=0.0) -> None:
  """Checks that all processes end, one of them with an error with `words`."""
  allowed = [{1} | (_LOST if launch.several else set())] * run.layout.processes
  _wait_and_judge(run, launch, record, 1, allowed, struck)
  ends = [
    line
    for line in launch.output().splitlines()
    if line.startswith(('error: ', 'ended: ')) and words in line
  ]
  if 'Traceback' in launch.output():
    record.problems.append('it printed a traceback')
  outputs = [
    launch.output(index)
    for index, code in enumerate(record.codes)
    if code not in _LOST
  ]
  if not ends:
    lines = [output.splitlines()[-1:] for output in outputs]
    record.problems.append(f'no error says {words!r}: {lines}')
  for output in outputs:
    if len(between.error_lines(output)) > 3:
      record.problems.append(f'more than 3 lines: {output[-900:]!r}')
