"""Guards: `checkpoint.every='auto'` saves often, and at little cost."""

import types
from unittest import mock

import pytest

from tests import tiny_run
from vit_jax import certificate, checkpoint
from vit_jax import config as config_lib
from vit_jax.runtime import goodput
from vit_jax.training import recording, train
from vit_jax.workdir import environment, metrics

STEPS = 60  # Of a second each.


def _config(every, minutes=0.0):
  config = tiny_run.tiny_config(total_steps=STEPS, log__every=2)
  config.checkpoint.update(every=every, every_minutes=minutes, keep_every=32)
  config.evals.test = config_lib.evaluation('test[:5]', every=12)
  return config


@pytest.fixture(scope='module')
def usual(programs, tmp_path_factory):
  """The rows of a run that saves every 1000 steps, so only at its end."""
  workdir = tmp_path_factory.mktemp('usual')
  train.train_and_evaluate(_config(1000), workdir)
  return _rows(workdir)


def _rows(workdir):
  """Returns the rows without what only saved ones have."""
  rows = tiny_run.rows_but_times(workdir)
  return [
    {k: v for k, v in row.items() if k != metrics.FINGERPRINT} for row in rows
  ]


@pytest.mark.parametrize(
  ('block', 'background', 'best', 'minutes', 'steps'),
  [
    # Slow storage: a save begins at the first row after the end of the last.
    (0.02, 8.5, None, 0.0, [2, 12, 22, 32, 42, 52, 60]),
    # A save that blocks the loop for 0.2 seconds lasts for 20 of them. The
    # first one tells this price; the last, and one to keep, are due anyway.
    (0.2, 1.5, None, 0.0, [2, 22, 32, 52, 60]),
    # So does that of a new best value.
    (0.2, 1.5, 12, 0.0, [2, 12, 32, 52, 60]),
    # After 15 seconds it may cost more.
    (0.2, 1.5, None, 0.25, [2, 18, 32, 48, 60]),
  ],
)
def test_saves_as_often_as_they_are_cheap(
  usual, tmp_path, monkeypatch, block, background, best, minutes, steps
):
  clock = types.SimpleNamespace(now=0.0, saved_at=0.0)
  saved, add = [], recording.Interval.add

  def now():
    return clock.now

  def add_a_second(self, values):
    clock.now += 1.0
    add(self, values)

  def is_saving():
    return clock.now < clock.saved_at

  def save(step, state, digests):
    del state
    assert step == STEPS or not is_saving(), 'The loop would wait.'
    saved.append(step)
    clock.now += block
    clock.saved_at = clock.now + background

  store = mock.create_autospec(checkpoint.Checkpoints)
  store.return_value.is_saving, store.return_value.save = is_saving, save
  store.return_value.note = lambda step, values: (
    'test/accuracy' in values and step == best
  )
  monkeypatch.setattr(checkpoint, 'Checkpoints', store)
  monkeypatch.setattr(certificate, 'write', lambda *_: None)  # Of no file.
  fake = types.SimpleNamespace(monotonic=now, time=now)
  for module in (recording, goodput):
    monkeypatch.setattr(module, 'time', fake)
  monkeypatch.setattr(recording.Interval, 'add', add_a_second)
  train.train_and_evaluate(_config('auto', minutes), tmp_path)
  assert saved == steps
  assert _rows(tmp_path) == usual


def test_such_a_run_ends_as_an_uninterrupted_one(finished, tmp_path):
  config = tiny_run.eventful_config()
  config.checkpoint.every = 'auto'
  with pytest.MonkeyPatch.context() as patch:
    tiny_run.die_at(patch, 9)
    with pytest.raises(tiny_run.Death):
      train.train_and_evaluate(config, tmp_path)
  train.train_and_evaluate(config, tmp_path)
  # The first row of a launch is saved, and the second if it comes late.
  assert environment.read(tmp_path)[-1]['step'] in (3, 6)
  assert checkpoint.latest_step(tmp_path) == 12
  tiny_run.assert_same_state(tmp_path, finished[0])
