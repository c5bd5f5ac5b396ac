"""Draws from a seed which fault happens to which run, and when."""

import dataclasses
import random
from collections.abc import Collection, Sequence

from tests.faults import launching

KINDS = {
  'kill-one': 'SIGKILL to one process of several',
  'kill-all': 'SIGKILL to all processes',
  'kill-saving': 'SIGKILL to one or all while a checkpoint is written',
  'kill-ending': 'SIGKILL to one or all when the last checkpoint is written',
  'freeze-one': 'SIGSTOP to one process of several',
  'sigterm-one': 'SIGTERM to one process of several',
  'sigterm-all': 'SIGTERM to all processes',
  'truncate': 'a file of the newest checkpoint cut, after a kill',
  'delete': 'a file of the newest checkpoint deleted, after a kill',
  'flip': 'a bit of the newest checkpoint flipped, after a kill',
  'disk-full': 'no space left, before or during a launch (needs root)',
  'read-only': 'a file system mounted read-only (needs root)',
  'nan-skip': 'a kill of a run that skips a step with NaN gradients',
  'nan-stop': 'NaN gradients end the run twice, and do not come again',
  'sigterm-early': 'SIGTERM to all processes while they start',
  'ctrl-c': 'SIGINT to all processes',
  'ctrl-c-one': 'SIGINT to one process of several',
  'ctrl-c-twice': 'SIGINT to all processes, and again while they save',
  'orphans': 'SIGKILL to all processes, which have data workers',
  'unverified': 'fingerprints deleted and 64 bytes changed, after a kill',
  'empty-step': 'an empty folder beside the checkpoints, after a kill',
  'small-file': 'a small file of the work directory damaged, after a kill',
  'gone': 'the checkpoints taken away, after a kill, and brought back',
  'other-config': 'another config, after a kill',
  'other-data': 'other data than before, after a kill',
  'second-copy': 'the same command again, while the first process is stopped',
}
DAMAGES = ('truncate', 'delete', 'flip', 'unverified')
# Faults that happen between a kill and the next launch.
AFTER_KILL = ('empty-step', 'small-file', 'gone', 'other-config', 'other-data')
# Signals that end the run without a save.
AT_ONCE = ('sigterm-early', 'ctrl-c-twice')
SEVERAL = ('kill-one', 'freeze-one', 'sigterm-one', 'ctrl-c-one')
NEED_DISK = ('disk-full', 'read-only')
_PLACES = ('folder', 'disk')


@dataclasses.dataclass(frozen=True)
class Moment:
  """When a launch is interrupted.

  Attributes:
    event: 'start', 'built' (the model's parameters were counted; it compiles),
      'restored', 'step' (the launch's `count`th step line), 'saving' (its
      `count`th checkpoint is being written), 'checkpoints' (there are
      `count` checkpoints) or 'last' (the checkpoint of step `count` is there).
    count: see `event`.
    delay: seconds after the event.
  """

  event: str
  count: int = 1
  delay: float = 0.0

  def __str__(self):
    number = f' {self.count}' if self.event in ('step', 'saving') else ''
    return f'{self.event}{number} + {self.delay:.2f} s'


@dataclasses.dataclass(frozen=True)
class Fault:
  """One interruption.

  Attributes:
    kind: one of KINDS.
    layout: the layout of the run.
    place: 'folder', 'disk' (the run has its own small disk) or 'nan' (the run
      skips a step).
    moment: when the fault happens.
    process: the process that it hits; None: all.
    seed: the seed of the fault's own random choices.
  """

  kind: str
  layout: launching.Layout
  place: str
  moment: Moment
  process: int | None
  seed: int


def make_plan(
  interruptions: int,
  seed: int,
  kinds: Collection[str],
  layouts: Sequence[launching.Layout],
  *,
  disks: bool,
) -> list[Fault]:
  """Draws a plan in which all kinds come equally often.

  Args:
    interruptions: the number of faults.
    seed: equal seeds give equal plans.
    kinds: keys of KINDS.
    layouts: the layouts of the runs.
    disks: whether file systems can be mounted; if not, the kinds that need
      them are left out.

  Raises:
    ValueError: no kind fits the layouts.
  """
  rng = random.Random(seed)
  pairs = [
    (kind, layout)
    for kind in kinds
    for layout in layouts
    if (disks or kind not in NEED_DISK)
    and (layout.processes > 1 or kind not in SEVERAL)
  ]
  if not pairs:
    raise ValueError(
      f'No fault of {sorted(kinds)} fits'
      f' {[layout.name for layout in layouts]}'
      f'{"" if disks else " without file systems of our own"}.'
    )
  faults, left = [], []
  for _ in range(interruptions):
    left = left or sorted({kind for kind, _ in pairs})
    kind = left.pop(rng.randrange(len(left)))
    layout = rng.choice([layout for name, layout in pairs if name == kind])
    faults.append(_draw(kind, layout, disks, rng))
  return faults


def _draw(kind, layout, disks, rng) -> Fault:
  place = rng.choice(_PLACES) if disks else 'folder'
  if kind in NEED_DISK:
    place = 'disk'
  elif kind == 'nan-skip':
    place = 'nan'
  process = rng.randrange(layout.processes)
  if kind in ('kill-saving', 'kill-ending', 'nan-skip'):
    process = rng.choice([process, None])
  elif kind not in SEVERAL:
    process = None
  moment = _moment(kind, layout, rng)
  return Fault(kind, layout, place, moment, process, rng.randrange(2**32))


def _moment(kind, layout, rng) -> Moment:
  if kind == 'kill-ending':
    return Moment('last', layout.steps, rng.choice([0, 0.05, 0.2]))
  if kind == 'kill-saving':
    return Moment('saving', rng.randint(1, 3), rng.choice([0, 0.01, 0.05]))
  if kind == 'sigterm-early':
    return Moment('start', 1, rng.uniform(0.5, 4))
  if kind == 'gone':  # With fewer, the first may not be complete yet.
    return Moment('checkpoints', 3, rng.uniform(0, 0.5))
  if kind in DAMAGES:
    # With two checkpoints, one is left to fall back to.
    return Moment('checkpoints', 2, rng.uniform(0, 0.5))
  if kind == 'disk-full' and rng.random() < 0.4:
    return Moment('start')
  most = 5 if kind == 'nan-skip' else 3  # Its step is one of the first 24.
  running = Moment('step', rng.randint(1, most), rng.uniform(0, 0.5))
  if kind in (*AFTER_KILL, 'second-copy', 'orphans'):
    return running
  if kind.startswith(('sigterm', 'ctrl-c')):
    restored = Moment('restored', 1, rng.uniform(0, 2))
    return rng.choice([running, running, running, restored])
  return rng.choice(
    [
      Moment('start', 1, rng.uniform(0.5, 8)),
      Moment('built', 1, rng.uniform(0, 2)),
      Moment('restored', 1, rng.uniform(0, 1)),
      running,
      running,
      running,
    ]
  )
