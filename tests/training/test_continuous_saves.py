"""Guards: `checkpoint.every='auto'` saves often, and at little cost."""

import types

import pytest

from tests.tiny_run import (
  Death,
  assert_same_state,
  die_at,
  eventful_config,
  rows_but_times,
  tiny_config,
)
from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax.runtime import goodput
from vit_jax.training import recording, train
from vit_jax.workdir import environment

STEPS = 60  # Of a second each.


class _Store:
  """Checkpoints that block the loop, and then take time in the background."""

  directory = None

  def __init__(self, clock, block, background, best):
    self.clock, self.block, self.background = clock, block, background
    self.best, self.steps, self._ends_at = best, [], 0.0

  def is_saving(self):
    return self.clock.now < self._ends_at

  def save(self, step, state):
    del state
    assert step == STEPS or not self.is_saving(), 'The loop would wait.'
    self.steps.append(step)
    self.clock.now += self.block
    self._ends_at = self.clock.now + self.background

  def note(self, step, values):
    return 'test/accuracy' in values and step == self.best

  def ignore(self, *_):
    pass

  check = check_space = wait = close = ignore


def _config(every):
  config = tiny_config(
    {'total_steps': STEPS, 'log.every': 2, 'checkpoint.every': every}
  )
  config.evals.test = config_lib.evaluation('test[:5]', every=12)
  return config


@pytest.fixture(scope='module')
def usual(programs, tmp_path_factory):
  """The rows of a run that saves every 1000 steps, so only at its end."""
  workdir = tmp_path_factory.mktemp('usual')
  train.train_and_evaluate(_config(1000), workdir)
  return rows_but_times(workdir)


@pytest.mark.parametrize(
  ('block', 'background', 'best', 'minutes', 'steps'),
  [
    # Slow storage: a save begins at the first row after the end of the last.
    (0.02, 8.5, None, 0.0, [2, 12, 22, 32, 42, 52, 60]),
    # A save that blocks the loop for 0.2 seconds lasts for 20 of them.
    (0.2, 1.5, None, 0.0, [2, 22, 42, 60]),
    # So does that of a new best value.
    (0.2, 1.5, 12, 0.0, [2, 12, 32, 52, 60]),
    # After 15 seconds it may cost more.
    (0.2, 1.5, None, 0.25, [2, 18, 34, 50, 60]),
  ],
)
def test_saves_as_often_as_they_are_cheap(
  usual, tmp_path, monkeypatch, block, background, best, minutes, steps
):
  clock = types.SimpleNamespace(now=0.0)
  store, add = _Store(clock, block, background, best), recording.Interval.add

  def now():
    return clock.now

  def add_a_second(self, values):
    clock.now += 1.0
    add(self, values)

  fake = types.SimpleNamespace(monotonic=now, time=now)
  for module in (recording, goodput):
    monkeypatch.setattr(module, 'time', fake)
  monkeypatch.setattr(recording.Interval, 'add', add_a_second)
  monkeypatch.setattr(checkpoint, 'Checkpoints', lambda *_, **__: store)
  config = _config('auto')
  config.checkpoint.every_minutes = minutes
  train.train_and_evaluate(config, tmp_path)
  assert store.steps == steps
  # The first one tells the price, and some are due anyway.
  own = set(steps[1:]) - {best, STEPS}
  assert minutes or len(own) * block <= 0.01 * STEPS
  assert rows_but_times(tmp_path) == usual


def test_such_a_run_ends_as_an_uninterrupted_one(finished, tmp_path):
  config = eventful_config()
  config.checkpoint.every = 'auto'
  with pytest.MonkeyPatch.context() as patch:
    die_at(patch, 9)
    with pytest.raises(Death):
      train.train_and_evaluate(config, tmp_path)
  train.train_and_evaluate(config, tmp_path)
  # The first row of each launch is saved.
  assert [row['step'] for row in environment.read(tmp_path)] == [0, 3]
  assert checkpoint.latest_step(tmp_path) == 12
  assert_same_state(tmp_path, finished[0])
