"""One run that is interrupted repeatedly, and the checks that it must pass."""

import dataclasses
import pathlib
import re
import shutil
import signal

from tests.faults import launching
from tests.faults.damage import Disk, complete_steps
from tests.faults.plan import Fault
from tests.tiny_run import rows_but_times, saved_state

_BEGINNING = re.compile(r'Resuming \S+ from step (\d+)\.|(Fresh weights)\.')
_DAMAGED = re.compile(r'The checkpoint \S+/(\d+) is damaged')
# Means and sums since the previous line, which a save may have added.
_INTERVAL = ('loss', 'accuracy', 'skipped', 'unreadable')
# A save ends at the latest when the save after the next step line begins.
MOST_LOST = 2 * launching.SAVE_EVERY


@dataclasses.dataclass
class Record:
  """One interruption and its consequences.

  Attributes:
    fault: the planned fault.
    done: a description of what was done.
    codes: the exit codes that followed.
    damaged: the step of the checkpoint that was damaged; 0: none.
    aftermath: how the next launch began.
    problems: violated expectations.
  """

  fault: Fault
  done: str = ''
  codes: tuple[int, ...] = ()
  damaged: int = 0
  aftermath: str = ''
  problems: list[str] = dataclasses.field(default_factory=list)


class Run:
  """A run's work directory, and its state between launches."""

  def __init__(
    self,
    name: str,
    layout: launching.Layout,
    folder: pathlib.Path,
    *,
    disk: bool = False,
  ):
    """Makes the folders.

    Args:
      name: unique in the campaign.
      layout: see `launching`.
      folder: the campaign's folder.
      disk: whether the run gets its own file system.
    """
    self.name, self.layout = name, layout
    self._logs = folder / 'logs'
    self._logs.mkdir(parents=True, exist_ok=True)
    self._folder = folder / 'runs' / name
    self._folder.mkdir(parents=True, exist_ok=True)
    self.disk = Disk(self._folder) if disk else None
    self.workdir = self._folder / 'run'
    self.records: list[Record] = []
    self.damaged: set[int] = set()  # Steps.
    self.finished = False
    self._launches = 0
    self._before: list[int] = []

  def start(self) -> launching.Launch:
    """Starts the run's command."""
    self._before = complete_steps(self.workdir)
    self.damaged &= set(self._before)
    self._launches += 1
    return launching.Launch(
      launching.command(self.layout, self.workdir),
      self.workdir,
      self._logs / f'{self.name}.{self._launches:02}',
      processes=self.layout.processes,
      devices=self.layout.devices,
    )

  def look_at(self, launch: launching.Launch) -> list[str]:
    """Returns what is wrong with the beginning of a launch and its results.

    Also notes in the records of earlier interruptions how the launch began.
    """
    problems = []
    beginnings = set(_BEGINNING.findall(launch.output()))
    reported = {int(step) for step in _DAMAGED.findall(launch.output())}
    if reported - self.damaged:
      problems.append(
        f'reported as damaged, but nobody damaged are: {sorted(reported)}'
      )
    if len(beginnings) > 1:
      problems.append(f'processes began differently: {beginnings}')
    now = complete_steps(self.workdir)
    newest = self._before[-1] if self._before else 0
    if beginnings:
      start = min(int(text or 0) for text, _ in beginnings)
      problems += self._judge(start, newest, reported)
      self.damaged = set()
      newest = start
    elif self.damaged:
      newest = 0
    if (now[-1] if now else 0) < newest:
      problems.append(f'step {newest} is gone: {now}')
    last = launch.last_step()
    if last - (now[-1] if now else 0) > MOST_LOST:
      problems.append(f'at step {last} only {now} were saved')
    for index, code in enumerate(launch.codes()):
      # JAX aborts the processes that lost another one.
      aborted = launch.several and code == -signal.SIGABRT
      if (code or 0) < 0 and not (aborted or index in launch.signalled):
        problems.append(f'process {index} died by signal {-code}')
    if launch.overdue:
      problems.append(f'processes {launch.overdue} did not end in time')
    return problems

  def _judge(self, start, newest, reported) -> list[str]:
    """Checks that a launch began at the newest intact checkpoint."""
    skipped = {step for step in self._before if step > start}
    aftermath = 'resumed at the newest' if newest else 'nothing was saved'
    of_damage = 'reported, fell back' if skipped else 'damage had no effect'
    for record in self.records:
      text = of_damage if record.damaged in self.damaged else aftermath
      record.aftermath = record.aftermath or text
    if start > newest or skipped - (self.damaged & reported):
      return [
        f'resumed at {start} of {self._before}; damaged:'
        f' {sorted(self.damaged)}, reported: {sorted(reported)}'
      ]
    return []

  def finish(self, expected: pathlib.Path | None) -> list[str]:
    """Runs to the end undisturbed, and compares with the uninterrupted run.

    Args:
      expected: work directory of the uninterrupted run; None for that run.

    Returns:
      The problems found.
    """
    problems = []
    if not self.finished:
      with self.start() as launch:
        codes = launch.wait(launching.PATIENCE)
        problems = self.look_at(launch)
        if any(codes):
          lines = launch.output().splitlines()[-2:]
          return problems + [f'undisturbed, it ended with {codes}: {lines}']
    self.finished = True
    if expected:
      try:
        problems += differences(self.workdir, expected, self.layout.steps)
      except (OSError, ValueError) as error:
        problems.append(f'cannot be compared: {error}')
    return problems

  def close(self, keep: bool) -> None:
    """Removes the run, or keeps its folder; copies it from its own disk."""
    if self.disk:
      if keep:
        shutil.copytree(self._folder, f'{self._folder}.kept')
      self.disk.close()
    if not keep or self.disk:
      shutil.rmtree(self._folder, ignore_errors=True)


def differences(
  workdir: pathlib.Path, expected: pathlib.Path, steps: int
) -> list[str]:
  """Returns how a finished run differs from another run, except for times.

  Compares the states and the final weights bitwise, and the numbers of all
  lines that both runs have. A run that saved because of a signal has more.
  """
  problems = []
  if complete_steps(workdir)[-1:] != [steps]:
    problems.append(f'the checkpoints are {complete_steps(workdir)}')
  for part in ('.', 'final'):
    actual, wanted = (
      {name: (x.dtype, x.shape, x.tobytes()) for name, x in state.items()}
      for state in (saved_state(workdir / part), saved_state(expected / part))
    )
    names = actual.keys() | wanted.keys()
    if wrong := [n for n in names if actual.get(n) != wanted.get(n)]:
      problems.append(f'{len(wrong)} of {len(wanted)} arrays differ: {wrong}')
  if (workdir / 'DONE').read_text() != (expected / 'DONE').read_text():
    problems.append('DONE differs')
  if left := list(workdir.glob('*/*-tmp*')):
    problems.append(f'left over: {left}')
  return problems + _row_differences(
    rows_but_times(workdir), rows_but_times(expected)
  )


def _row_differences(rows, expected) -> list[str]:
  steps = {row['step'] for row in expected}
  actual = [row for row in rows if row['step'] in steps]
  more = [row['step'] for row in rows if row['step'] not in steps]
  if len(actual) != len(expected):
    return [f'{len(actual)} lines of numbers instead of {len(expected)}']
  problems, before = [], 0
  for row, wanted in zip(actual, expected, strict=True):
    split = any(before < step < wanted['step'] for step in more)
    leave_out = {f'train/{name}' for name in _INTERVAL} if split else set()
    one, other = (
      {k: v for k, v in x.items() if k not in leave_out} for x in (row, wanted)
    )
    if one != other:
      problems.append(f'numbers differ: {row}, not {wanted}')
    if 'train/loss' in wanted:
      before = wanted['step']
  return problems[:3]
