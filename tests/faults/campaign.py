"""Interrupts small training runs at random, and checks that nothing is lost.

    python -m tests.faults.campaign --interruptions=50 --workdir=/tmp/faults

Each run is `python -m vit_jax.main` on simulated CPU devices: one process with
1 or 4 devices, or two with 2 each. After each interruption the same command
starts again. The campaign checks each time: the exit codes (see
`python -m vit_jax.main --help`); that all processes end within their limits;
that the next launch resumes at the newest intact checkpoint, and names damaged
ones. At last, each run goes on undisturbed to its end. Then its parameters,
optimizer state, averages and metrics must be bitwise those of an uninterrupted
run. The exit code is 0 only if all checks pass.

The kinds of faults (--only=KIND,...):
"""

import argparse
import pathlib
import random
import signal
import sys
import time

import jax

from tests.faults import injecting, launching, plan, reporting
from tests.faults.damage import complete_steps, why_no_disk
from tests.faults.runs import Record, Run

_MOST_FAULTS = 7  # Maximum number of faults in one run.
_TRIES = 3  # Attempts if runs finish before the fault.


class Campaign:
  """All runs of a campaign."""

  def __init__(self, folder: pathlib.Path, seed: int, say: reporting.Progress):
    self.records: list[Record] = []
    self.problems: list[str] = []
    self.verified = 0
    self._folder = folder
    self._say = say
    self._rng = random.Random(f'runs of {seed}')
    self._open: dict[tuple[str, str], Run] = {}
    self._expected: dict[tuple[str, int], pathlib.Path] = {}
    self._nan_steps: dict[str, int] = {}
    self._count = 0

  def interrupt(self, fault: plan.Fault) -> None:
    """Interrupts a run, or another one if it finished before the fault."""
    for _ in range(_TRIES):
      run = self._run_for(fault)
      record = injecting.interrupt(run, fault)
      if record is not None:
        break
      self._say(f'{run.name}: finished before {fault.kind} at {fault.moment}')
      self._finish(run)
    else:
      record = Record(fault, problems=['the moment never came'])
      self.records.append(record)
      return self._say.interruption(run, record)
    run.records.append(record)
    self.records.append(record)
    self._say.interruption(run, record)
    done = len(run.records) >= _MOST_FAULTS
    steps = complete_steps(run.workdir)
    # A run gets no more faults after the step that it skips.
    late = steps and steps[-1] >= (run.nan_step or 0.7 * run.layout.steps)
    if record.problems or done or late:
      self._finish(run)

  def finish(self) -> None:
    """Runs all remaining runs to their ends."""
    for run in list(self._open.values()):
      self._finish(run)

  def close(self) -> None:
    for run in self._open.values():
      run.close(keep=False)

  def _run_for(self, fault: plan.Fault) -> Run:
    key = (fault.layout.name, fault.place)
    if key not in self._open:
      nan_step = 0
      if fault.place == 'nan':
        nan_step = self._nan_steps.setdefault(
          fault.layout.name, self._rng.randint(6, 24)
        )
      self._reference(fault.layout, nan_step)
      self._count += 1
      name = f'{fault.layout.name}-{fault.place}-{self._count:02}'
      self._open[key] = Run(
        name,
        fault.layout,
        self._folder,
        disk=fault.place == 'disk',
        nan_step=nan_step,
      )
    return self._open[key]

  def _reference(self, layout, nan_step) -> pathlib.Path:
    """Returns the work directory of an uninterrupted run."""
    key = (layout.name, nan_step)
    if key not in self._expected:
      name = f'{layout.name}-uninterrupted'
      if nan_step:
        name += f'-nan-at-{nan_step}'
      run = Run(name, layout, self._folder, nan_step=nan_step)
      before = time.monotonic()
      problems = run.finish(None)
      self._say(f'{name}: {time.monotonic() - before:.0f} s')
      if problems:
        raise SystemExit(f'error: {name}: {"; ".join(problems)}')
      self._expected[key] = run.workdir
    return self._expected[key]

  def _finish(self, run: Run) -> None:
    self._open = {k: v for k, v in self._open.items() if v is not run}
    problems = run.finish(self._reference(run.layout, run.nan_step))
    self.problems += [f'{run.name}: {problem}' for problem in problems]
    self.verified += not problems
    result = '; '.join(problems) or 'ended bitwise as uninterrupted'
    self._say(f'{run.name}: after {len(run.records)} faults {result}')
    bad = problems or any(record.problems for record in run.records)
    run.close(keep=bool(bad))


def main(words=None) -> int:
  """Runs the command; returns its exit code."""
  arguments = _parse(words)
  jax.config.update('jax_platforms', 'cpu')  # JAX only reads checkpoints here.
  # A normal exit ends all processes and mounts of the campaign.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  # A shell's background process ignores SIGINT, and so would its children.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  folder = arguments.workdir.absolute()
  if folder.exists() and any(folder.iterdir()):
    sys.exit(f'error: --workdir={folder} is not empty.')
  folder.mkdir(parents=True, exist_ok=True)
  reason = why_no_disk(folder / 'disk')
  if reason:
    print(f'No file system can be mounted ({reason}). Left out:')
    print(f'  {", ".join(plan.NEED_DISK)}')
  try:
    faults = plan.make_plan(
      arguments.interruptions,
      arguments.seed,
      arguments.only,
      [x for x in launching.LAYOUTS if x.processes in arguments.processes],
      disks=not reason,
    )
  except ValueError as error:
    sys.exit(f'error: {error}')
  say = reporting.Progress(len(faults))
  campaign = Campaign(folder, arguments.seed, say)
  try:
    for fault in faults:
      campaign.interrupt(fault)
    campaign.finish()
  finally:
    campaign.close()
  print(reporting.table(campaign.records), flush=True)
  wrong = campaign.problems + [
    f'{record.fault.kind}, {record.done}: {problem}'
    for record in campaign.records
    for problem in record.problems
  ]
  print(
    f'\n{len(campaign.records)} interruptions (seed {arguments.seed}) in'
    f' {say.elapsed()}; {campaign.verified} runs ended bitwise as'
    f' uninterrupted; {len(wrong)} problems'
  )
  for text in wrong:
    print(f'- {text}')
  if wrong:
    print(f'The outputs of all processes are in {folder}/logs.')
  return 1 if wrong else 0


def _parse(words):
  kinds = '\n'.join(f'  {k:12} {text}' for k, text in plan.KINDS.items())
  parser = argparse.ArgumentParser(
    prog='python -m tests.faults.campaign',
    description=__doc__ + '\n' + kinds,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    '--interruptions', type=int, default=50, help='their number (default: 50)'
  )
  parser.add_argument(
    '--seed', type=int, default=0, help='seed of the plan (default: 0)'
  )
  parser.add_argument(
    '--workdir',
    type=pathlib.Path,
    required=True,
    help='empty folder for runs and logs; needs 200 MB',
  )
  parser.add_argument(
    '--only',
    type=lambda text: text.split(','),
    default=list(plan.KINDS),
    help='kinds of faults, separated by commas (default: all)',
  )
  parser.add_argument(
    '--processes',
    type=lambda text: [int(word) for word in text.split(',')],
    default=[1, 2],
    help='number of processes of a run: 1, 2 or both (default: 1,2)',
  )
  arguments = parser.parse_args(words)
  if unknown := set(arguments.only) - set(plan.KINDS):
    parser.error(
      f'--only: {sorted(unknown)} unknown; choose of {", ".join(plan.KINDS)}'
    )
  if arguments.interruptions < 1:
    parser.error('--interruptions must be at least 1')
  return arguments


if __name__ == '__main__':
  sys.exit(main())
