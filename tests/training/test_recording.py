"""Guards: metrics of an interval, the guard, and early stopping (Figure 4)."""

import time
import types

import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from tests.tiny_run import Death, saved_state, tiny_config
from vit_jax import checkpoint, results
from vit_jax import config as config_lib
from vit_jax.runtime.errors import NonFiniteError
from vit_jax.training import evaluate, recording, train
from vit_jax.training import program as program_lib
from vit_jax.workdir import metrics


@pytest.fixture
def clock(monkeypatch):
  """A clock that moves only by `clock.now += seconds`."""
  clock = types.SimpleNamespace(now=1000.0)
  fake = types.SimpleNamespace(monotonic=lambda: clock.now)
  monkeypatch.setattr(recording, 'time', fake)
  return clock


def test_speed_leaves_out_evaluations_and_saves(clock):
  measure = recording.Progress(total_steps=200, batch_size=32)
  seconds = {'steps': 1.0, 'input': 50.0}
  measure.start(101, seconds)
  assert measure.measure(101, seconds) == {}
  clock.now += 10
  seconds = {'steps': 8.5, 'input': 52.5}
  assert measure.measure(111, seconds) == {
    'images_per_sec': 32.0,
    'input_wait': 0.25,
    'eta_sec': 89.0,
  }
  clock.now += 20
  seconds = {'steps': 17.5, 'input': 53.5}
  # 20 steps took 30 seconds, pauses included: 69 x 1.5 seconds are left.
  assert measure.measure(121, seconds) == {
    'images_per_sec': 32.0,
    'input_wait': 0.1,
    'eta_sec': 118.5,
  }


def test_log_lines(caplog):
  values = {
    'train/loss': 0.12345,
    'train/accuracy': 0.9,
    'train/learning_rate': 3e-4,
    'train/unreadable': 0.0,
    'train/skipped': 0.0,
  }
  speed = {'images_per_sec': 12345.6, 'input_wait': 0.071, 'eta_sec': 93784}
  caplog.set_level('INFO', logger=logging.get_absl_logger().name)
  for more in ({'train/unreadable': 3.0, 'train/skipped': 2.0}, speed):
    recording.log_line(50, 10000, values | more)
  line = 'step    50/10000  loss 0.1235  acc  90.0%  lr 3.00e-04'
  assert caplog.messages == [
    f'{line}  unreadable 3  skipped 2',
    f'{line}  12,346 img/s  input  7%  ETA 1 day, 2:03:04',
  ]


def test_interval_means_sums_and_last_values():
  interval = recording.Interval(10)
  others = dict(grad_norm=1.0, update_norm=1.0, param_norm=1.0, unreadable=2.0)
  for loss, skipped in ((1.0, 0), (2.0, 0), (4.0, 0), (float('nan'), 1)):
    step = dict(loss=loss, accuracy=loss / 4, learning_rate=loss / 10)
    # The last is another mean of an objective.
    step |= others | {'skipped': skipped, 'distilled': 2 * loss}
    interval.add({k: jnp.float32(v) for k, v in step.items()})
  # The skipped step is only counted.
  assert interval.mean() == pytest.approx(
    {
      'train/loss': 7 / 3,
      'train/accuracy': 7 / 12,
      'train/distilled': 14 / 3,
      'train/learning_rate': 0.4,
      'train/grad_norm': 1.0,
      'train/update_norm': 1.0,
      'train/param_norm': 1.0,
      'train/unreadable': 8.0,
      'train/skipped': 1.0,
    }
  )


# The guard -------------------------------------------------------------------


@pytest.mark.parametrize(
  'nonfinite, message, saved, rows',
  [
    ('stop', r'at step 7 \(found in steps 7 to 8', ['4'], [3, 4, 6]),
    pytest.param(  # `test_step.py` guards what such steps change.
      *('skip', 'at step 10, number 4 in a row', ['4', '8']),
      [3, 4, 6, 8, 8, 9],
      marks=pytest.mark.gate,
    ),
  ],
)
def test_divergence_stops_with_the_last_good_checkpoint(
  tmp_path, monkeypatch, nonfinite, message, saved, rows
):
  compile_ = program_lib.Program.compile

  def slow(self):
    future = compile_(self)
    return types.SimpleNamespace(
      result=lambda: (time.sleep(1), future.result())[1]
    )

  monkeypatch.setattr(program_lib.Program, 'compile', slow)
  config = tiny_config(
    {'total_steps': 12, 'checkpoint.every': 4, 'log.every': 3}
  )
  config.guard.update(nonfinite=nonfinite, max_skipped=3)
  config.evals.test = config_lib.evaluation('test', every=8)
  # The seventh update has a learning rate of 1e33.
  config.schedule = config_lib.schedule(
    'staircase', peak=1e-3, warmup_steps=0, boundaries=(0.5,), factor=1e36
  )
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9)
  with pytest.raises(NonFiniteError, match=message) as error:
    train.train_and_evaluate(config, tmp_path)
  assert f'what is in {tmp_path}/checkpoints is of before' in str(error.value)
  assert not (tmp_path / 'DONE').exists()
  checkpoints = sorted(p.name for p in (tmp_path / 'checkpoints').iterdir())
  assert checkpoints == saved
  for name, value in saved_state(tmp_path).items():
    assert np.isfinite(value).all(), name
  assert [row['step'] for row in metrics.read(tmp_path)] == rows
  # The wait for the step is compilation.
  assert metrics.read(tmp_path)[0]['goodput/compilation_seconds'] > 1


# Early stopping on a random subset -------------------------------------------

BEST = 'validation/accuracy'


def _config():
  """Twelve steps: the model learns, then a huge learning rate spoils it."""
  config = tiny_config(
    {
      'data.train_split': 'shuffled(train)[:50%]',
      # Twelve steps: 0.7 epochs of all 288 images.
      'data.examples_per_epoch': -1,
      'total_steps': 0,
      'epochs': 0.7,
      'checkpoint.best': BEST,
      'checkpoint.every': 4,
      'checkpoint.keep': 1,
      'log.every': 3,
    }
  )
  config.schedule = config_lib.schedule(
    'staircase', peak=1e-2, warmup_steps=0, boundaries=(0.7,), factor=300.0
  )
  config.evals.validation = config_lib.evaluation(
    'shuffled(train)[50%:]', every=2
  )
  config.evals.few_shot = config_lib.evaluation(
    'test', 'few_shot', train_split='train[:50%]', shots=(5,), every=2
  )
  return config


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run that died as it saved the best weights of step 8."""
  workdir = tmp_path_factory.mktemp('a run')
  original = checkpoint.save_params

  def save_params(workdir, kind, step, *args, **kwargs):
    if kind == checkpoint.BEST and step == 8:
      raise Death
    return original(workdir, kind, step, *args, **kwargs)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoint, 'save_params', save_params)
    with pytest.raises(Death):
      train.train_and_evaluate(_config(), workdir)
  train.train_and_evaluate(_config(), workdir)
  return workdir


def test_the_step_with_the_best_validation_accuracy_is_picked(run):
  accuracies = {
    row['step']: row[BEST] for row in metrics.read(run) if BEST in row
  }
  assert list(accuracies) == [2, 4, 6, 8, 10, 12]
  # `max` takes the first of equals.
  best = max(accuracies, key=accuracies.get)
  # The accuracy has risen and fallen.
  assert accuracies[2] < accuracies[best] > accuracies[12] + 0.2
  # A value counts only with its weights, of which the first save failed.
  assert best == 8
  assert [path.name for path in (run / 'best').iterdir()] == [str(best)]
  kept = {path.name for path in (run / 'checkpoints').iterdir()}
  assert kept == {str(best), '12'}
  # All evaluations of that step are read.
  row = results.best_row(run, BEST)
  assert (row['step'], row[BEST]) == (best, accuracies[best])
  (few,) = (
    r
    for r in metrics.read(run)
    if r['step'] == best and 'few_shot/5shot/accuracy' in r
  )
  assert row['few_shot/5shot/accuracy'] == few['few_shot/5shot/accuracy']
  assert (row['few_shot/count'], row['validation/count']) == (72, 144)


def test_the_early_stopped_weights_are_as_good_as_was_measured(run, tmp_path):
  config = _config()
  config.checkpoint.best = ''
  config.init.checkpoint = str(run / 'best')
  del config.evals['few_shot']
  found = evaluate.evaluate_only(config, tmp_path)
  best = results.best_row(run, BEST)
  for key in (BEST, 'validation/loss'):
    assert found[key] == pytest.approx(best[key], rel=1e-5), key
