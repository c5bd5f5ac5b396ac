"""Each kind of fault: done to a run, and judged by what followed at once."""

import random
import re
import signal
import time

from tests.faults import launching
from tests.faults.damage import complete_steps, damage, listing
from tests.faults.plan import DAMAGES, Fault, Moment
from tests.faults.runs import Record, Run

# Seconds beyond a limit, for a busy machine.
_MARGIN = 25
_SAVE_AND_STOP = 90
_FAIL = 120
_LOST, _PREEMPTED = 76, 75  # See vit_jax/errors.py.
_JOINED = re.compile(r'All \d+ processes are there')
_READY = re.compile(r'Resuming \S+ from|Fresh weights')


def interrupt(run: Run, fault: Fault) -> Record | None:
  """Does what is planned.

  Returns:
    What was done, and found; None if the run finished before.
  """
  record = Record(fault)
  rng = random.Random(fault.seed)
  if fault.kind == 'read-only':
    happened = _mount_read_only(run, record)
  elif fault.kind == 'disk-full':
    happened = _fill_disk(run, record, rng)
  elif fault.kind == 'nan-stop':
    happened = _stop_at_nan(run, record, rng)
  elif fault.kind.startswith('sigterm'):
    happened = _terminate(run, record)
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


def _not_reached(run: Run, launch: launching.Launch, record: Record) -> bool:
  """After a launch that ended early, or never came to the moment."""
  codes = launch.wait(1)
  record.problems += run.look_at(launch)
  record.codes = tuple(codes)
  if any(codes):
    record.problems.append(f'ended with {codes} before {record.fault.moment}')
    return True
  run.finished = True
  # Nothing was done to it, but what is wrong must be told.
  return bool(record.problems)


def _target(fault: Fault) -> str:
  return 'all' if fault.process is None else f'process {fault.process}'


def _where(launch: launching.Launch) -> str:
  return f'{launch.seconds():.1f} s, step {launch.last_step()}'


def _judge(run, launch, record, limit, allowed, struck=None) -> None:
  """Waits for the end, and compares the exit codes.

  Args:
    run: interrupted.
    launch: which one.
    record: gets what is found.
    limit: seconds.
    allowed: for each process, the codes that it may have.
    struck: when the interruption was, if not now, in seconds of the launch.
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


def _limit_of_survivors(launch, victim) -> float:
  """How long the others may live on without a process."""
  joined = all(
    _JOINED.search(launch.output(index))
    for index in range(len(launch.processes))
  )
  known = launching.LOST_TIMEOUT if joined else launching.START_TIMEOUT
  return known + _MARGIN


def _kill(run: Run, record: Record, rng: random.Random) -> bool:
  fault = record.fault
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _not_reached(run, launch, record)
    limit = _limit_of_survivors(launch, fault.process)
    record.done = f'SIGKILL to {_target(fault)} at {_where(launch)}'
    launch.send(signal.SIGKILL, fault.process)
    # 0: it had finished in that very moment.
    allowed = [
      {-9, 0} if fault.process in (None, index) else {_LOST, 0}
      for index in range(run.layout.processes)
    ]
    _judge(run, launch, record, limit, allowed)
  if not any(record.codes):
    run.finished = True
    return bool(record.problems)
  if fault.kind in DAMAGES:
    _damage(run, record, rng)
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


def _terminate(run: Run, record: Record) -> bool:
  fault = record.fault
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _not_reached(run, launch, record)
    record.done = f'SIGTERM to {_target(fault)} at {_where(launch)}'
    launch.send(signal.SIGTERM, fault.process)
    _judge(
      run,
      launch,
      record,
      _SAVE_AND_STOP,
      [{_PREEMPTED, 0}] * run.layout.processes,
    )
    if not any(record.codes):
      run.finished = True
      return bool(record.problems)
    if 'nothing was trained since the start' in launch.output():
      record.done += ', nothing to save'
      return True
    saved = re.findall(r'stopped after step (\d+), which was', launch.output())
    steps = complete_steps(run.workdir)
    if set(saved) != {str(steps[-1]) if steps else ''}:
      record.problems.append(f'it says that {saved} was saved: {steps}')
    record.done += f', saved {saved[0] if saved else "nothing"}'
  return True


def _freeze(run: Run, record: Record) -> bool:
  fault = record.fault
  with run.start() as launch:
    if not reached(launch, fault.moment):
      return _not_reached(run, launch, record)
    limit = _limit_of_survivors(launch, fault.process)
    record.done = f'SIGSTOP to {_target(fault)} at {_where(launch)}'
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
    allowed = [{_LOST}] * run.layout.processes
    _judge(run, launch, record, limit, allowed, struck)
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
          return _not_reached(run, launch, record)
        record.done = f'disk full but for {left} bytes at {_where(launch)}'
      struck = launch.seconds()
      deadline = time.monotonic() + _FAIL
      while launch.running() and time.monotonic() < deadline:
        run.disk.fill(left)  # Again: old checkpoints are removed.
        time.sleep(0.02)
      _expect_error(run, launch, record, 'No space left', struck)
  finally:
    run.disk.empty()
  return True


def _mount_read_only(run: Run, record: Record) -> bool:
  before = listing(run.disk.folder)
  run.disk.read_only(True)
  try:
    record.done = 'mounted read-only before the launch'
    with run.start() as launch:
      launch.wait(_FAIL)
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
      launch.wait(_FAIL)
      _expect_error(run, launch, record, f'at step {bad} ')
      if complete_steps(run.workdir)[-1:] >= [bad]:
        record.problems.append('a step with NaN was saved')
  return True


def _expect_error(run, launch, record, words, struck=0.0) -> None:
  """All must end with an error, and one must say these words."""
  allowed = [{1, _LOST}] * run.layout.processes
  _judge(run, launch, record, 1, allowed, struck)
  ends = [
    line
    for line in launch.output().splitlines()
    if line.startswith(('error: ', 'ended: ')) and words in line
  ]
  if '--- Logging error ---' in launch.output():  # Orbax's own are tolerated.
    record.problems.append('it logs that it cannot log')
  if not ends or 1 not in record.codes:
    lines = [
      launch.output(i).splitlines()[-1:] for i in range(len(record.codes))
    ]
    record.problems.append(f'no error says {words!r}: {lines}')
