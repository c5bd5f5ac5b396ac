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

The kinds of faults (--only KIND ...):
"""

import argparse
import collections
import datetime
import pathlib
import signal
import sys
import time
from collections.abc import Sequence

import jax

from tests.faults import injecting, launching, plan
from tests.faults.damage import complete_steps, why_no_disk
from tests.faults.runs import Record, Run

_MOST_FAULTS = 7  # Maximum number of faults in one run.
_TRIES = 3  # Attempts if runs finish before the fault.


class Campaign:
  """All runs of a campaign."""

  def __init__(self, folder: pathlib.Path):
    self.records: list[Record] = []
    self.problems: list[str] = []
    self.verified = 0
    self._folder = folder
    self._started = time.monotonic()
    self._open: dict[tuple[str, bool], Run] = {}
    self._expected: dict[str, pathlib.Path] = {}
    self._count = 0

  def say(self, text: str) -> None:
    seconds = round(time.monotonic() - self._started)
    print(f'{datetime.timedelta(seconds=seconds)} {text}', flush=True)

  def interrupt(self, fault: plan.Fault) -> None:
    """Interrupts a run, or another one if it finished before the fault."""
    for _ in range(_TRIES):
      run = self._run_for(fault)
      record = injecting.interrupt(run, fault)
      if record is not None:
        break
      self.say(f'{run.name}: finished before {fault.kind} at {fault.moment}')
      self._finish(run)
    else:
      record = Record(fault, problems=['the moment never came'])
    run.records.append(record)
    self.records.append(record)
    self.say(
      f'[{len(self.records)}] {run.name}: {fault.kind}: {record.done}; exit'
      f' codes {record.codes}'
    )
    for problem in record.problems:
      self.say(f'PROBLEM: {problem}')
    done = len(run.records) >= _MOST_FAULTS
    late = complete_steps(run.workdir)[-1:] >= [0.7 * run.layout.steps]
    if run in self._open.values() and (record.problems or done or late):
      self._finish(run)

  def finish(self) -> None:
    """Runs all remaining runs to their ends."""
    for run in list(self._open.values()):
      self._finish(run)

  def close(self) -> None:
    for run in self._open.values():
      run.close(keep=False)

  def _run_for(self, fault: plan.Fault) -> Run:
    key = (fault.layout.name, fault.kind == 'disk-full')
    if key not in self._open:
      self._reference(fault.layout)
      self._count += 1
      name = f'{fault.layout.name}-{self._count:02}'
      self._open[key] = Run(name, fault.layout, self._folder, disk=key[1])
    return self._open[key]

  def _reference(self, layout) -> pathlib.Path:
    """Returns the work directory of an uninterrupted run."""
    if layout.name not in self._expected:
      run = Run(f'{layout.name}-uninterrupted', layout, self._folder)
      if problems := run.finish(None):
        raise SystemExit(f'error: {run.name}: {"; ".join(problems)}')
      self._expected[layout.name] = run.workdir
    return self._expected[layout.name]

  def _finish(self, run: Run) -> None:
    self._open = {k: v for k, v in self._open.items() if v is not run}
    problems = run.finish(self._reference(run.layout))
    self.problems += [f'{run.name}: {problem}' for problem in problems]
    self.verified += not problems
    result = '; '.join(problems) or 'ended bitwise as uninterrupted'
    self.say(f'{run.name}: after {len(run.records)} faults {result}')
    bad = problems or any(record.problems for record in run.records)
    run.close(keep=bool(bad))


def table(records: Sequence[Record]) -> str:
  """Returns a Markdown table of the faults, their numbers and results."""
  lines = ['| fault | number | what followed | failed |', '|---|---|---|---|']
  for kind in plan.KINDS:
    rows = [record for record in records if record.fault.kind == kind]
    found = collections.Counter(
      f'{record.fault.layout.name}: exit {"/".join(map(str, record.codes))},'
      f' {record.aftermath or "ended"}'
      for record in rows
    )
    texts = [f'{number} x {text}' for text, number in found.most_common()]
    failed = sum(bool(record.problems) for record in rows)
    if rows:
      lines.append(f'| {kind} | {len(rows)} | {"; ".join(texts)} | {failed} |')
  return '\n'.join(lines)


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
  kinds = arguments.only
  if reason := why_no_disk(folder / 'disk'):
    print(f'No file system can be mounted ({reason}): disk-full is left out.')
    kinds = [kind for kind in kinds if kind != 'disk-full']
  layouts = [x for x in launching.LAYOUTS if x.processes in arguments.processes]
  try:
    faults = plan.make_plan(
      arguments.interruptions, arguments.seed, kinds, layouts
    )
  except ValueError as error:
    sys.exit(f'error: {error}')
  campaign = Campaign(folder)
  try:
    for fault in faults:
      campaign.interrupt(fault)
    campaign.finish()
  finally:
    campaign.close()
  print(table(campaign.records), flush=True)
  wrong = campaign.problems + [
    f'{record.fault.kind}, {record.done}: {problem}'
    for record in campaign.records
    for problem in record.problems
  ]
  campaign.say(
    f'{len(campaign.records)} interruptions (seed {arguments.seed});'
    f' {campaign.verified} runs ended bitwise as uninterrupted; {len(wrong)}'
    ' problems'
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
  add = parser.add_argument
  add('--workdir', type=pathlib.Path, required=True, help='an empty folder')
  add('--interruptions', type=int, default=50, help='their number (50)')
  add('--seed', type=int, default=0, help='seed of the plan (0)')
  add(
    '--only',
    nargs='+',
    choices=list(plan.KINDS),
    default=list(plan.KINDS),
    help='kinds of faults (all)',
    metavar='KIND',
  )
  add(
    '--processes',
    nargs='+',
    type=int,
    choices=(1, 2),
    default=[1, 2],
    help='processes of a run: 1, 2 or both (1 2)',
  )
  return parser.parse_args(words)


if __name__ == '__main__':
  sys.exit(main())
