"""Guards: bitwise resumption, and signals."""

import contextlib

import numpy as np
import pytest

from tests.tiny_run import (
  SIZES,
  Death,
  assert_same_state,
  die_at,
  eventful_config,
  rows_but_times,
)
from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax.configs import pretrain
from vit_jax.runtime import preemption
from vit_jax.runtime.errors import PreemptedError
from vit_jax.training import train
from vit_jax.workdir import environment, metrics, ownership


def _run_to_death(config, workdir, step):
  with pytest.MonkeyPatch.context() as patch:
    die_at(patch, step)
    with pytest.raises(Death):
      train.train_and_evaluate(config, workdir)
  assert metrics.read(workdir)[-1]['step'] == step
  assert not (workdir / 'DONE').exists()


def _run_to_a_signal(config, workdir, requests):
  """Asks a run to stop, when it looks for the last of so many times."""
  calls = []

  def requested(self):
    self.reason = 'SIGTERM'
    calls.append(None)
    return len(calls) == requests

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(preemption.Notice, 'requested', requested)
    with pytest.raises(PreemptedError, match='stopped after step 6,'):
      train.train_and_evaluate(config, workdir)


def test_an_interrupted_run_ends_as_an_uninterrupted_one(finished, tmp_path):
  config = eventful_config()
  # After the second batch of the first evaluation.
  _run_to_a_signal(config, tmp_path, 8)
  assert checkpoint.latest_step(tmp_path) == 6
  assert [row['step'] for row in metrics.read(tmp_path)] == [3, 4, 6]
  # Step 9 is repeated.
  _run_to_death(config, tmp_path, 9)
  train.train_and_evaluate(config, tmp_path)
  assert [row['step'] for row in environment.read(tmp_path)] == [0, 6, 8]
  assert (tmp_path / 'DONE').read_text() == '12\n'
  assert_same_state(tmp_path, finished[0])
  # Rows that were logged after a checkpoint appear once, not twice.
  assert rows_but_times(tmp_path) == rows_but_times(finished[0])


def _augmented_config(devices):
  """Returns a config of four steps with all augmentations."""
  config = pretrain.get_config('ViT-Ti/4,digits:01,image_size=8,epochs=300')
  config.model.update(SIZES)
  config.channels = 1
  config.loss.label_smoothing = 0.1
  config.evals = {}
  config.checkpoint.best = ''
  config.schedule = config_lib.schedule('constant', peak=1e-2, warmup_steps=0)
  config.update_from_flattened_dict(
    {
      'data.preprocess': 'inception_crop|flip|rand_augment(2,10)'
      '|colour_jitter|random_erasing(0.25)',
      'data.batch_size': 16,
      'mixup_alpha': 0.8,
      'cutmix_alpha': 1.0,
      'accumulation_steps': 2,
      'dropout_rng': 'threefry',
      'model.stochastic_depth': 0.3,
      'total_steps': 4,
      'epochs': 0.0,
      'log.every': 1,
      'log.tensorboard': False,
      'checkpoint.every': 2,
    }
  )
  config.mesh.data, config.mesh.fsdp = devices, 1
  return config


@pytest.mark.gate
def test_a_run_with_augmentations_goes_on_on_fewer_devices(tmp_path):
  train.train_and_evaluate(_augmented_config(1), tmp_path / 'one')
  _run_to_death(_augmented_config(8), tmp_path / 'both', 3)
  # Before the other launch, which repeats the third step.
  before = metrics.read(tmp_path / 'both')
  train.train_and_evaluate(_augmented_config(1), tmp_path / 'both')
  expected, found = (
    [row['train/loss'] for row in metrics.read(tmp_path / name)]
    for name in ('one', 'both')
  )
  assert len(expected) == 4
  np.testing.assert_allclose(found, expected, rtol=1e-4)
  np.testing.assert_allclose(
    [row['train/loss'] for row in before], expected[:3], rtol=1e-4
  )
  launches = environment.read(tmp_path / 'both')
  assert [(row['step'], row['devices']) for row in launches] == [(0, 8), (2, 1)]


def test_who_had_the_directory_until_now_may_have_begun_another_run(
  tmp_path, monkeypatch
):
  @contextlib.contextmanager
  def held(workdir):
    other = eventful_config()
    other.seed = 7
    config_lib.save(other, workdir)
    yield lambda: None

  monkeypatch.setattr(ownership, 'held', held)
  with pytest.raises(ValueError, match='seed: '):
    train.train_and_evaluate(eventful_config(), tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_a_signal_waits_for_what_is_worth_keeping(copy, monkeypatch):
  """The run is trained; an evaluation and the final weights are missing."""
  more = eventful_config()
  more.evals.half = config_lib.evaluation('test[:50%]')
  notices, seen = [], []
  begin = preemption.Notice.begin

  def begin_and_note(self):
    begin(self)
    notices.append(self)
    seen.append(self.nothing_to_save)

  def requested(self):
    seen.append(self.nothing_to_save)
    return False

  def save_params(*_, **__):
    seen.append(notices[-1].nothing_to_save)
    raise Death

  monkeypatch.setattr(preemption.Notice, 'begin', begin_and_note)
  monkeypatch.setattr(preemption.Notice, 'requested', requested)
  monkeypatch.setattr(checkpoint, 'save_params', save_params)
  # The second launch only saves the weights.
  for config, batches in ((more, 3), (eventful_config(), 0)):
    seen.clear()
    with pytest.raises(Death):
      train.train_and_evaluate(config, copy)
    assert seen == [True] + batches * [False] + [False]
