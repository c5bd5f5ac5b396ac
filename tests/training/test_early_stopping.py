"""Guards: early stopping on a random subset, as in Figure 4, end to end."""

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.training import evaluate, train
from vit_jax.workdir import metrics

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
      'checkpoint.every': 12,
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
  workdir = tmp_path_factory.mktemp('a run')
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
  assert [path.name for path in (run / 'best').iterdir()] == [str(best)]
  kept = {path.name for path in (run / 'checkpoints').iterdir()}
  assert kept == {str(best), '12'}
  row = results.best_row(run, BEST)
  assert (row['step'], row[BEST]) == (best, accuracies[best])


def test_all_evaluations_of_the_best_step_are_read(run):
  row = results.best_row(run, BEST)
  (few,) = (
    r
    for r in metrics.read(run)
    if r['step'] == row['step'] and 'few_shot/5shot/accuracy' in r
  )
  assert row['few_shot/5shot/accuracy'] == few['few_shot/5shot/accuracy']
  assert row['few_shot/count'] == 72
  assert row['validation/count'] == 144
  assert 'few_shot/5shot/accuracy' in results.final_metrics(run)


def test_the_early_stopped_weights_are_as_good_as_was_measured(run, tmp_path):
  config = _config()
  config.checkpoint.best = ''
  config.init.checkpoint = str(run / 'best')
  found = evaluate.evaluate_only(config, tmp_path)
  best = results.best_row(run, BEST)
  for key in (BEST, 'validation/loss', 'few_shot/5shot/accuracy'):
    assert found[key] == pytest.approx(best[key], rel=1e-5), key
