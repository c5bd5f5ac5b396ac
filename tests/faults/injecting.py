"""Injects faults into runs, and judges the immediate consequences."""

import random
import re
import signal
import time

from tests.faults import launching
from tests.faults.damage import complete_steps, damage
from tests.faults.plan import AT_ONCE, DAMAGES, Fault, Moment
from tests.faults.runs import Record, Run

# Seconds to add to a limit on a busy machine.
_MARGIN = 25
_SAVE_AND_STOP = 90
_AT_ONCE = 10
_PREEMPTED, _BY_USER = 75, 130  # See vit_jax/runtime/errors.py.
# A collective failed, or JAX aborted the process.
_LOST = {76, -signal.SIGABRT}
_JOINED = re.compile(r'All \d+ processes are there')
_READY = re.compile(r'Resuming \S+ from|Fresh weights')


def interrupt(run: Run, fault: Fault) -> Record | None:
  """Injects a planned fault.

  Returns:
    A record of what was done and found; None if the run finished before.
  """
  record = Record(fault)
  if fault.kind == 'disk-full':
    happened = _fill_disk(run, record)
  elif fault.kind.startswith(('sigterm', 'ctrl-c')):
    happened = _signal(run, record)
  elif fault.kind == 'freeze-one':
    happened = _freeze(run, record)
  else:
    happened = _kill(run, record)
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
    enough = len(complete_steps(launch.workdir)) >= moment.count
    return enough and _READY.search(launch.output(0)) is not None
  patterns = {
    'built': re.compile(' parameters '),
    'restored': _READY,
    'step': launching.STEP_LINE,
  }
  found = patterns[moment.event].findall(launch.output(0))
  return len(found) >= moment.count


def _note(launch, record, what) -> None:
  target = record.fault.process
  record.done = (
    f'{what} to {"all" if target is None else f"process {target}"} at'
    f' {launch.seconds():.1f} s, step {launch.last_step()}'
  )


def _finished(run: Run, record: Record) -> bool:
  """Notes that a run has finished; returns whether there are problems."""
  run.finished = True
  return bool(record.problems)


def _judge_early_end(run, launch, record) -> bool:
  """Judges a launch that ended before the moment came.

  Returns:
    Whether there is a problem to report.
  """
  record.codes = tuple(launch.wait(1))
  record.problems += run.look_at(launch)
  if any(record.codes):
    record.problems.append(f'ended before {record.fault.moment}')
    return True
  return _finished(run, record)


def _wait_and_judge(run, launch, record, limit, allowed) -> None:
  """Waits for the end of a launch, and compares the exit codes.

  Args:
    run: the interrupted run.
    launch: its launch.
    record: gets the results.
    limit: seconds to wait.
    allowed: the allowed exit codes of each process.
  """
  record.codes = tuple(launch.wait(limit))
  for index, (code, choices) in enumerate(
    zip(record.codes, allowed, strict=True)
  ):
    if code not in choices and index not in launch.overdue:
      last = launch.output(index).splitlines()[-1:]
      record.problems.append(
        f'process {index} ended with {code}, not {sorted(choices)}: {last}'
      )
  record.problems += run.look_at(launch)


def _survivors_limit(launch) -> float:
  """Returns how many seconds the other processes may outlive the victim."""
  joined = all(
    _JOINED.search(launch.output(index))
    for index in range(len(launch.processes))
  )
  known = launching.LOST_TIMEOUT if joined else launching.START_TIMEOUT
  return known + _MARGIN


def _kill(run: Run, record: Record) -> bool:
  fault = record.fault
  rng = random.Random(fault.seed)
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _judge_early_end(run, launch, record)
    limit = _survivors_limit(launch)
    _note(launch, record, 'SIGKILL')
    launch.send(signal.SIGKILL, fault.process)
    # 0: the run had just finished.
    allowed = [
      {-9, 0} if fault.process in (None, index) else _LOST | {0}
      for index in range(run.layout.processes)
    ]
    _wait_and_judge(run, launch, record, limit, allowed)
  if not any(record.codes):
    return _finished(run, record)
  if fault.kind in DAMAGES:
    _damage(run, record, rng)
  if fault.kind == 'empty-step':
    empty = run.workdir / 'checkpoints' / str(rng.choice([1, 9999]))
    empty.mkdir(parents=True, exist_ok=True)
  return True


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
    _note(launch, record, number.name)
    launch.send(number, fault.process)
    if fault.kind in AT_ONCE:
      if not early:
        time.sleep(0.2)
        launch.send(number, fault.process)
      limit = _AT_ONCE
      if launch.several:  # A process may end before it has notified the others.
        allowed |= _LOST
        limit = _survivors_limit(launch)
    _wait_and_judge(
      run, launch, record, limit, [allowed] * run.layout.processes
    )
    if not any(record.codes):
      return _finished(run, record)
    nothing = 'nothing was trained since the start' in launch.output()
    if fault.kind not in AT_ONCE and not nothing:
      saved = re.findall(
        r'stopped after step (\d+), which was', launch.output()
      )
      steps = complete_steps(run.workdir)
      if set(saved) != {str(steps[-1]) if steps else ''}:
        record.problems.append(f'it says that {saved} was saved: {steps}')
  return True


def _freeze(run: Run, record: Record) -> bool:
  fault = record.fault
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _judge_early_end(run, launch, record)
    limit = _survivors_limit(launch)
    _note(launch, record, 'SIGSTOP')
    launch.send(signal.SIGSTOP, fault.process)
    struck = launch.seconds()
    others = set(range(run.layout.processes)) - {fault.process}
    while late := [i for i in others if launch.codes()[i] is None]:
      if launch.seconds() > struck + limit:
        record.problems.append(f'{late} waited more than {limit} s for it')
        break
      time.sleep(0.05)
    launch.send(signal.SIGCONT, fault.process)
    allowed = [_LOST] * run.layout.processes
    _wait_and_judge(run, launch, record, limit, allowed)
  return True


def _fill_disk(run: Run, record: Record) -> bool:
  fault = record.fault
  left = random.Random(fault.seed).choice([0, 4096, 32768])
  before = fault.moment.event == 'start'
  if before:
    run.disk.fill(left)
  try:
    with run.start() as launch:
      if not (before or reached(launch, fault.moment)):
        return _judge_early_end(run, launch, record)
      _note(launch, record, f'disk full but for {left} bytes')
      struck = launch.seconds()
      while launch.running() and launch.seconds() < struck + launching.FAIL:
        run.disk.fill(left)  # The run frees space: it removes old checkpoints.
        time.sleep(0.02)
      allowed = {1} | (_LOST if launch.several else set())
      _wait_and_judge(run, launch, record, 1, [allowed] * run.layout.processes)
      _expect_error(launch, record, 'No space ')
  finally:
    run.disk.empty()
  return True


def error_lines(output: str) -> list[str]:
  """Returns the lines of the error that ended a process; [] if none."""
  # Logged errors begin with a time; the final error does not.
  found = re.search(
    r'^(?:error|ended): (?!\d\d:)(.*)\Z', output, re.DOTALL | re.MULTILINE
  )
  return found[1].splitlines() if found else []


def _expect_error(launch, record, words) -> None:
  """Expects an error of at most three lines with `words`, and no traceback."""
  if 'Traceback' in launch.output():
    record.problems.append('it printed a traceback')
  outputs = [
    launch.output(index)
    for index, code in enumerate(launch.codes())
    if code not in _LOST
  ]
  if not any(words in ''.join(error_lines(output)) for output in outputs):
    record.problems.append(f'no error says {words!r}: {launch.output()[-300:]}')
  if any(len(error_lines(output)) > 3 for output in outputs):
    record.problems.append(f'more than 3 lines: {launch.output()[-900:]}')
