"""Guards: a campaign detects what is wrong; and (slow) finds nothing wrong."""

import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from tests.faults import (
  between,
  damage,
  injecting,
  launching,
  nan_main,
  plan,
  runs,
)
from vit_jax.training import gradients
from vit_jax.training import step as step_lib

ONE = launching.LAYOUTS[0]


def _record(kind, layout=ONE, **values):
  moment = plan.Moment('step', 2, 0.25)
  fault = plan.Fault(kind, layout, 'folder', moment, None, seed=0)
  return runs.Record(fault, **values)


# Detection of problems --------------------------------------------------------


def _look_at(tmp_path, output, before, now, *, damaged=(), last=0, codes=(0,)):
  """Returns what `Run.look_at` finds in a launch with this output."""
  run = runs.Run('run', ONE, tmp_path)
  run.damaged = set(damaged)
  run.records = [_record('flip', damaged=10), _record('kill-all')]
  run._before = before
  for step in now:
    (run.workdir / 'checkpoints' / str(step) / 'default').mkdir(parents=True)
  launch = types.SimpleNamespace(
    several=False,
    output=lambda: output,
    last_step=lambda: last,
    codes=lambda: list(codes),
    signalled=set(),
    overdue=[],
  )
  return run.look_at(launch), [record.aftermath for record in run.records]


_DAMAGED = 'The checkpoint /w/checkpoints/10 is damaged: a. Falling back\n'


@pytest.mark.parametrize(
  ('output', 'damaged', 'aftermath'),
  [
    ('Resuming /w from step 10.', [], ['resumed at the newest'] * 2),
    (
      'Resuming /w from step 10.',
      [10],
      ['not noticed: no effect', 'resumed at the newest'],
    ),
    (
      _DAMAGED + 'Resuming /w from step 5.',
      [10],
      ['reported, fell back', 'resumed at the newest'],
    ),
    ('killed before it began', [10], ['', '']),
  ],
)
def test_good_launches_are_recognized(tmp_path, output, damaged, aftermath):
  problems, found = _look_at(
    tmp_path, output, [5, 10], [5, 10], damaged=damaged, last=20
  )
  assert problems == []
  assert found == aftermath


@pytest.mark.parametrize(
  ('output', 'values', 'problem'),
  [
    ('Resuming /w from step 5.', {}, 'resumed at 5 of'),
    ('Resuming /w from step 5.', {'damaged': [10]}, 'reported: []'),
    ('Fresh weights.', {}, 'resumed at 0 of'),
    ('Resuming /w from step 15.', {}, 'resumed at 15, not at 10'),
    (_DAMAGED + 'Resuming /w from step 10.', {}, 'nobody damaged are: [10]'),
    (
      'Resuming /w from step 10.\nResuming /w from step 5.',
      {'damaged': [10]},
      'began differently',
    ),
    ('Resuming /w from step 10.', {'now': [5]}, 'step 10 is gone'),
    ('', {'now': [5]}, 'step 10 is gone'),
    ('Resuming /w from step 10.', {'last': 21}, 'at step 21 only'),
    ('Resuming /w from step 10.', {'codes': [-11]}, '0 died by signal 11'),
  ],
)
def test_bad_launches_are_recognized(tmp_path, output, values, problem):
  values = {'before': [5, 10], 'now': [5, 10]} | values
  problems, _ = _look_at(tmp_path, output, **values)
  assert any(problem in text for text in problems), problems


def test_rows_are_compared_except_where_a_restart_splits_a_mean():
  def row(step, loss, norm=1.0, skipped=0.0):
    return {
      'step': step,
      'train/loss': loss,
      'train/grad_norm': norm,
      'train/skipped': skipped,
    }

  evaluation = {'step': 10, 'test/loss': 0.5}
  expected = [row(5, 3.0), row(10, 2.0, skipped=1.0), evaluation]
  assert runs._row_differences(expected, expected) == []
  # A save at step 7 splits the mean of steps 6 to 10, but nothing else.
  split = [row(5, 3.0), row(7, 2.5, skipped=1.0), row(10, 1.5), evaluation]
  assert runs._row_differences(split, expected) == []
  for wrong in (
    [row(5, 3.0), row(10, 2.0, skipped=1.0)],
    [row(5, 3.1), *expected[1:]],
    [row(5, 3.0), row(7, 2.5), row(10, 2.0), evaluation],
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


@pytest.fixture
def launch(tmp_path):
  """Starts a process that seems to save twice, and then waits."""
  words = [sys.executable, '-c', _SAVES, str(tmp_path / 'run')]
  logs = tmp_path / 'logs'
  with launching.Launch(words, tmp_path / 'run', logs) as launch:
    yield launch
  assert launch.processes[0].returncode is not None


def test_moments_are_detected(launch):
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
  launch.send(signal.SIGKILL)
  assert launch.wait(10) == [-9]
  assert (launch.overdue, launch.signalled) == ([], {0})
  assert not injecting.reached(launch, plan.Moment('last', 10))


def test_a_process_that_exceeds_the_limit_is_killed_and_named(launch):
  assert launch.wait(0.1) == [-9]
  assert launch.overdue == [0]


def test_the_final_error_is_distinguished_from_logged_errors():
  logged = 'error: 01:23:02 The checkpoint 5 is damaged.\nwarning: 01:23:03 a\n'
  assert between.error_lines(logged) == []
  ended = f'{logged}error: No space: 7 B.\nMake room.\n'
  assert between.error_lines(ended) == ['No space: 7 B.', 'Make room.']


def test_each_process_gets_its_process_id(tmp_path):
  words = [sys.executable, '-c', 'import sys; print(sys.argv[1:])']
  logs = tmp_path / 'logs'
  with launching.Launch(words, tmp_path, logs, processes=2) as launch:
    assert launch.wait(20) == [0, 0]
    outputs = [launch.output(0), launch.output(1)]
  assert "'--process_id=0'" in outputs[0]
  assert "'--process_id=1'" in outputs[1]
  assert outputs[0].replace('id=0', 'id=1') == outputs[1]


def test_nan_gradients_occur_only_at_the_chosen_step(monkeypatch):
  def make_loss_and_grad():
    return lambda params, batch, key: ((0.5, {}), {'w': jax.numpy.ones(2)})

  monkeypatch.setattr(step_lib, 'root_keys', step_lib.root_keys)
  monkeypatch.setattr(gradients, 'make_loss_and_grad', make_loss_and_grad)
  nan_main.poison(3)
  _, dropout_key = step_lib.root_keys(7, 'threefry')
  loss_and_grad = jax.jit(gradients.make_loss_and_grad())
  for state_step, expected in ((1, 1.0), (2, np.nan), (3, 1.0)):
    key = jax.random.fold_in(dropout_key, state_step)
    (loss, _), grads = loss_and_grad({}, {}, key)
    assert loss == 0.5
    np.testing.assert_array_equal(grads['w'], [expected, expected])


# The campaign -----------------------------------------------------------------


@pytest.mark.slow  # Takes two hours: each of many runs is started many times.
@pytest.mark.parametrize(
  ('processes', 'interruptions'), [('1', 200), ('2', 100)]
)
def test_campaign(tmp_path, processes, interruptions):
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'tests.faults.campaign'),
      *(f'--workdir={tmp_path}', f'--interruptions={interruptions}'),
      f'--processes={processes}',
    ],
    cwd=launching.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert '| flip |' in done.stdout
  assert ' 0 problems\n' in done.stdout
