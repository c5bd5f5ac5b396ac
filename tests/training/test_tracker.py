"""Guards: what the loop evaluates and saves at a step, and in which order."""

import contextlib
import types

import jax.numpy as jnp
import pytest

from tests.tiny_run import tiny_config
from vit_jax import checkpoint, evaluators
from vit_jax import config as config_lib
from vit_jax.runtime import errors
from vit_jax.training import tracker as tracker_lib
from vit_jax.training.start_up import Start
from vit_jax.training.step import TrainState

STATE = TrainState(jnp.int32(4), {'w': jnp.ones(1)}, (), {})


class Journal:
  """A fake run of four steps, whose parts only record the calls to them.

  Attributes:
    events: the recorded calls, in order.
    values: the result of each evaluation; an exception is raised instead.
    notice: the fake `preemption.Notice` of the run.
  """

  def __init__(self, monkeypatch, *, best=None, every_minutes=0.0):
    self.events = []
    self.values = {'test/accuracy': 0.5}
    config = tiny_config({'total_steps': 4, 'checkpoint.best': 'test/accuracy'})
    config.checkpoint.every_minutes = every_minutes
    config.evals.test = config_lib.evaluation('test', every=2)
    config.evals.late = config_lib.evaluation('test')
    nothing = lambda *_: contextlib.nullcontext()  # noqa: E731
    self.notice = types.SimpleNamespace(
      requested=lambda: False,
      nothing_to_save=True,
      stopped=errors.PreemptedError,
    )
    run = types.SimpleNamespace(
      config=config,
      workdir='WORKDIR',
      program=types.SimpleNamespace(evaluated=lambda state: state),
      evaluations={'test': None, 'late': None},
      goodput=types.SimpleNamespace(
        phase=nothing,
        metrics=dict,
        summary=str,
        start_training=lambda: None,
      ),
      watchdog=types.SimpleNamespace(allow=nothing, beat=lambda _: None),
      notice=self.notice,
      check_owner=lambda: None,
    )
    checkpoints = types.SimpleNamespace(
      save=lambda step, state, found: self._note('save', dict(found)),
      note=lambda step, found: None,
      wait=lambda: self._note('wait'),
      latest_step=2,
    )
    writer = types.SimpleNamespace(
      write=lambda step, values: self._note('write', dict(values)),
      flush=lambda: self._note('flush'),
    )
    monkeypatch.setattr(evaluators, 'run', self._evaluate)
    monkeypatch.setattr(
      checkpoint,
      'save_params',
      lambda workdir, kind, *_, **__: self._note(kind),
    )
    start = Start(0, best, [], checkpoints)
    self.tracker = tracker_lib.Tracker(run, start, writer)

  def _note(self, *event):
    self.events.append(event if len(event) > 1 else event[0])

  def _evaluate(self, name, evaluator, state, step, on_batch):
    self._note(f'evaluate {name}')
    on_batch()
    if isinstance(self.values, Exception):
      raise self.values
    return self.values

  def step(self, due=(), step=2, **options):
    options = {'save': False, 'stop': False} | options
    return self.tracker.evaluate_and_save(STATE, step, due, **options)


@pytest.fixture
def journal(monkeypatch):
  return Journal(monkeypatch)


def test_what_is_due_by_its_period_and_at_the_end(journal):
  due = [journal.tracker.due(step) for step in (1, 2, 3, 4)]
  assert due == [[], ['test'], [], ['test', 'late']]


def test_the_save_of_a_step_precedes_its_evaluation(journal):
  assert not journal.step(['test'], save=True)
  assert journal.events[:3] == ['flush', ('save', {}), 'evaluate test']


def test_the_first_value_is_the_best_and_saves_the_state_too(journal):
  journal.step(['test'])
  assert journal.events == [
    'evaluate test',
    checkpoint.BEST,
    ('write', {'test/accuracy': 0.5}),
    'flush',
    ('save', {'test/accuracy': 0.5}),
  ]


@pytest.mark.parametrize('value, saves', [(0.4, False), (0.6, True)])
def test_only_a_better_value_than_that_of_earlier_launches_saves(
  monkeypatch, value, saves
):
  journal = Journal(monkeypatch, best=0.5)
  journal.values = {'test/accuracy': value}
  journal.step(['test'])
  assert (checkpoint.BEST in journal.events) == saves
  assert ('save', journal.values) in journal.events or not saves


def test_a_failed_evaluation_loses_no_step(journal):
  journal.values = RuntimeError('no image')
  with pytest.raises(RuntimeError, match='no image'):
    journal.step(['test'])
  assert journal.events[-1] == ('save', {})


def test_a_failed_evaluation_does_not_save_twice(journal):
  journal.values = RuntimeError('no image')
  with pytest.raises(RuntimeError):
    journal.step(['test'], save=True)
  assert journal.events.count(('save', {})) == 1


def test_a_failed_save_is_not_tried_again(journal):
  journal.values = errors.SaveError('full')
  with pytest.raises(errors.SaveError):
    journal.step(['test'])
  assert ('save', {}) not in journal.events


def test_a_stop_in_an_evaluation_saves_and_waits(journal):
  journal.notice.requested = lambda: True
  assert journal.step(['test'])
  assert journal.events == ['evaluate test', 'flush', ('save', {}), 'wait']


def test_a_stop_before_the_evaluations_waits_for_its_save(journal):
  assert journal.step(save=True, stop=True)
  assert journal.events == ['flush', ('save', {}), 'wait']


def test_the_last_save_is_waited_for(journal):
  journal.step(step=4, save=True)
  assert journal.events == ['flush', ('save', {}), 'wait']


def test_evaluations_that_are_made_up_for_and_stopped(journal):
  journal.notice.requested = lambda: True
  with pytest.raises(errors.PreemptedError, match='stopped after step 2'):
    journal.tracker.make_up_for(['test'], STATE, 2)
  assert not journal.notice.nothing_to_save


def test_without_a_limit_no_clock_asks_for_a_save(journal):
  journal.tracker.start_training()
  assert not journal.tracker.is_long_unsaved()


def test_the_clock_begins_with_training_and_with_each_save(monkeypatch):
  journal = Journal(monkeypatch, every_minutes=1)
  now = [0.0]
  monkeypatch.setattr(tracker_lib.time, 'monotonic', lambda: now[0])
  journal.tracker.start_training()
  now[0] = 59
  assert not journal.tracker.is_long_unsaved()
  now[0] = 60
  assert journal.tracker.is_long_unsaved()
  journal.step(save=True)
  assert not journal.tracker.is_long_unsaved()


def test_the_last_checkpoint_is_waited_for(journal):
  assert journal.tracker.last_checkpoint() == 2
  assert journal.events == ['wait']


def test_a_save_that_failed_leaves_the_one_before_it(journal, monkeypatch):
  def fail():
    raise errors.SaveError('full')

  monkeypatch.setattr(journal.tracker._checkpoints, 'wait', fail)
  assert journal.tracker.last_checkpoint() == 2
