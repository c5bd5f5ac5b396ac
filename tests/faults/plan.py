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
  'sigterm-early': 'SIGTERM to all processes while they start',
  'ctrl-c': 'SIGINT to all processes',
  'ctrl-c-one': 'SIGINT to one process of several',
  'ctrl-c-twice': 'SIGINT to all processes, and again while they save',
  'truncate': 'a file of the newest checkpoint cut, after a kill',
  'delete': 'a file of the newest checkpoint deleted, after a kill',
  'flip': 'a bit of the newest checkpoint flipped, after a kill',
  'unverified': 'fingerprints deleted and 64 bytes changed, after a kill',
  'empty-step': 'an empty folder beside the checkpoints, after a kill',
  'disk-full': 'no space left, before or during a launch (needs root)',
}
DAMAGES = ('truncate', 'delete', 'flip', 'unverified')
# Signals that end the run without a save.
AT_ONCE = ('sigterm-early', 'ctrl-c-twice')
SEVERAL = ('kill-one', 'freeze-one', 'sigterm-one', 'ctrl-c-one')


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
    return f'{self.event} {self.count} + {self.delay:.2f} s'


@dataclasses.dataclass(frozen=True)
class Fault:
  """One interruption.

  Attributes:
    kind: one of KINDS.
    layout: the layout of the run.
    moment: when the fault happens.
    process: the process that it hits; None: all.
    seed: the seed of the fault's own random choices.
  """

  kind: str
  layout: launching.Layout
  moment: Moment
  process: int | None
  seed: int


def make_plan(
  interruptions: int,
  seed: int,
  kinds: Collection[str],
  layouts: Sequence[launching.Layout],
) -> list[Fault]:
  """Draws a plan in which all kinds come equally often.

  Args:
    interruptions: the number of faults.
    seed: equal seeds give equal plans.
    kinds: keys of KINDS.
    layouts: the layouts of the runs.

  Raises:
    ValueError: no kind fits the layouts.
  """
  rng = random.Random(seed)
  fitting = {
    kind: found
    for kind in kinds
    if (found := [x for x in layouts if x.processes > 1 or kind not in SEVERAL])
  }
  if not fitting:
    raise ValueError(f'No fault of {sorted(kinds)} fits these layouts.')
  faults, left = [], []
  for _ in range(interruptions):
    left = left or sorted(fitting)
    kind = left.pop(rng.randrange(len(left)))
    layout = rng.choice(fitting[kind])
    process = rng.randrange(layout.processes)
    if kind in ('kill-saving', 'kill-ending'):
      process = rng.choice([process, None])
    elif kind not in SEVERAL:
      process = None
    moment = _moment(kind, layout, rng)
    faults.append(Fault(kind, layout, moment, process, rng.randrange(2**32)))
  return faults


def _moment(kind, layout, rng) -> Moment:
  if kind == 'kill-ending':
    return Moment('last', layout.steps, rng.choice([0, 0.05, 0.2]))
  if kind == 'kill-saving':
    return Moment('saving', rng.randint(1, 3), rng.choice([0, 0.01, 0.05]))
  if kind == 'sigterm-early':
    return Moment('start', 1, rng.uniform(0.5, 4))
  if kind in DAMAGES:
    # With two checkpoints, one is left to fall back to.
    return Moment('checkpoints', 2, rng.uniform(0, 0.5))
  if kind == 'disk-full' and rng.random() < 0.4:
    return Moment('start')
  running = Moment('step', rng.randint(1, 3), rng.uniform(0, 0.5))
  if kind == 'empty-step':
    return running
  restored = Moment('restored', 1, rng.uniform(0, 2))
  if kind.startswith(('sigterm', 'ctrl-c')):
    return rng.choice([running, running, running, restored])
  start = Moment('start', 1, rng.uniform(0.5, 8))
  built = Moment('built', 1, rng.uniform(0, 2))
  return rng.choice([start, built, restored, running, running, running])
