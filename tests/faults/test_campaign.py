"""Guards: a campaign detects what is wrong; and (slow) finds nothing wrong."""

import random
import signal
import subprocess
import sys
import types

import numpy as np
import pytest

from tests.faults import damage, injecting, launching, plan, runs

ONE, _, TWO = launching.LAYOUTS


# The plan ---------------------------------------------------------------------


def test_a_plan_follows_from_its_seed_and_fits_the_layouts():
  def draw(seed):
    return plan.make_plan(1000, seed, list(plan.KINDS), launching.LAYOUTS)

  faults = draw(3)
  assert faults == draw(3) != draw(4)
  assert {fault.kind for fault in faults} == set(plan.KINDS)
  for fault in faults:
    if fault.kind in plan.SEVERAL:
      assert (fault.layout, fault.process in (0, 1)) == (TWO, True)
    if fault.kind in ('kill-all', 'sigterm-all', 'flip'):
      assert fault.process is None
    if fault.kind in plan.DAMAGES:
      assert (fault.moment.event, fault.moment.count) == ('checkpoints', 2)
  processes = {f.process for f in faults if f.kind == 'kill-saving'}
  assert processes == {0, 1, None}
  with pytest.raises(ValueError, match='No fault of'):
    plan.make_plan(1, 0, ['kill-one'], [ONE])


# Damage -----------------------------------------------------------------------


@pytest.mark.parametrize('how', plan.DAMAGES)
def test_damage(tmp_path, how):
  checkpoint = tmp_path / '20'
  (checkpoint / 'd').mkdir(parents=True)
  (checkpoint / 'fingerprints').mkdir()
  file = checkpoint / 'd' / 'data'
  file.write_bytes(bytes(500))
  text = damage.damage(checkpoint, how, random.Random(0))
  assert text.endswith(' of 500 of 20/d/data')
  after = file.read_bytes() if file.exists() else b''
  bits = np.unpackbits(np.frombuffer(after, np.uint8)).sum()
  assert file.exists() == (how != 'delete')
  assert (len(after) == 500) == (how in ('flip', 'unverified'))
  assert bits == {'flip': 1, 'unverified': 64 * 8}.get(how, 0)
  assert (checkpoint / 'fingerprints').exists() == (how != 'unverified')


# Detection of problems --------------------------------------------------------

_DAMAGED = 'The checkpoint /w/checkpoints/10 is damaged: a. Falling back\n'
_AT_10 = 'Resuming /w from step 10.'
_AT_5 = 'Resuming /w from step 5.'


@pytest.mark.parametrize(
  ('output', 'values', 'problem', 'aftermath'),
  [
    (_AT_10, {}, '', ['resumed at the newest'] * 2),
    (
      _AT_10,
      {'damaged': [10]},
      *('', ['damage had no effect', 'resumed at the newest']),
    ),
    (
      _DAMAGED + _AT_5,
      {'damaged': [10]},
      *('', ['reported, fell back', 'resumed at the newest']),
    ),
    ('killed before it began', {'damaged': [10]}, '', ['', '']),
    (_AT_5, {}, 'resumed at 5 of', None),
    (_AT_5, {'damaged': [10]}, 'reported: []', None),
    ('Fresh weights.', {}, 'resumed at 0 of', None),
    ('Resuming /w from step 15.', {}, 'resumed at 15 of', None),
    (_DAMAGED + _AT_10, {}, 'nobody damaged are: [10]', None),
    (_AT_10 + _AT_5, {'damaged': [10]}, 'began differently', None),
    (_AT_10, {'now': [5]}, 'step 10 is gone', None),
    ('', {'now': [5]}, 'step 10 is gone', None),
    (_AT_10, {'last': 21}, 'at step 21 only', None),
    (_AT_10, {'codes': [-11]}, '0 died by signal 11', None),
  ],
)
def test_launches_are_judged(tmp_path, output, values, problem, aftermath):
  run = runs.Run('run', ONE, tmp_path)
  run.damaged = set(values.get('damaged', ()))
  fault = plan.Fault('flip', ONE, plan.Moment('step'), None, seed=0)
  run.records = [runs.Record(fault, damaged=10), runs.Record(fault)]
  run._before = [5, 10]
  for step in values.get('now', (5, 10)):
    (run.workdir / 'checkpoints' / str(step) / 'default').mkdir(parents=True)
  launch = types.SimpleNamespace(
    several=False,
    output=lambda: output,
    last_step=lambda: values.get('last', 0),
    codes=lambda: values.get('codes', [0]),
    signalled=set(),
    overdue=[],
  )
  found = run.look_at(launch)
  assert any(problem in text for text in found) if problem else not found
  if aftermath:
    assert [record.aftermath for record in run.records] == aftermath


def test_rows_are_compared_except_where_a_restart_splits_a_mean():
  def row(step, loss, norm=1.0):
    return {'step': step, 'train/loss': loss, 'train/grad_norm': norm}

  evaluation = {'step': 10, 'test/loss': 0.5}
  expected = [row(5, 3.0), row(10, 2.0), evaluation]
  assert runs._row_differences(expected, expected) == []
  # A save at step 7 splits the mean of steps 6 to 10, but nothing else.
  split = [row(5, 3.0), row(7, 2.5), row(10, 1.5), evaluation]
  assert runs._row_differences(split, expected) == []
  for wrong in (
    expected[:2],
    [row(5, 3.1), *expected[1:]],
    [*split[:2], row(10, 1.5, norm=1.1), evaluation],
    [*split[:3], evaluation | {'test/loss': 0.4}],
  ):
    assert runs._row_differences(wrong, expected), wrong


# Processes --------------------------------------------------------------------

_SAVES = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1]) / 'checkpoints'
for step in (5, 10):
  unfinished = folder / f'{step}.orbax-checkpoint-tmp'
  (unfinished / 'default').mkdir(parents=True)
  time.sleep(0.3)
  unfinished.rename(folder / str(step))
  print(f'10:11:12 step  {step}/10  loss', flush=True)

time.sleep(60)
"""


def test_moments_are_detected_and_late_processes_are_killed(tmp_path):
  words = [sys.executable, '-c', _SAVES, str(tmp_path / 'run')]
  with launching.Launch(words, tmp_path / 'run', tmp_path / 'logs') as launch:
    assert injecting.reached(launch, plan.Moment('saving', 2))
    assert launch.saves() == [
      'checkpoints/5.orbax-checkpoint-tmp',
      'checkpoints/10.orbax-checkpoint-tmp',
    ]
    assert launch.last_step() == 5
    assert injecting.reached(launch, plan.Moment('step', 2))
    assert launch.last_step() == 10
    assert injecting.reached(launch, plan.Moment('last', 10))
    assert damage.complete_steps(launch.workdir) == [5, 10]
    launch.send(signal.SIGCONT)
    assert launch.wait(0.1) == [-9]
    assert (launch.overdue, launch.signalled) == ([0], {0})
    assert not injecting.reached(launch, plan.Moment('last', 10))


# The campaign -----------------------------------------------------------------


@pytest.mark.slow  # Takes two hours: each of many runs is started many times.
@pytest.mark.parametrize(
  ('processes', 'interruptions'), [('1', 100), ('2', 40)]
)
def test_campaign(tmp_path, processes, interruptions):
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'tests.faults.campaign'),
      *(f'--workdir={tmp_path}', f'--interruptions={interruptions}'),
      *('--processes', processes),
    ],
    cwd=launching.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert '| flip |' in done.stdout
