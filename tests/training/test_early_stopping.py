"""Guards: early stopping on a random subset, as in Figure 4, end to end."""

import shlex

import flax.traverse_util
import numpy as np
import pytest
from absl import logging

from tests.tiny_run import tiny_config
from vit_jax import checkpoint, results
from vit_jax import config as config_lib
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
  config.evals.few_shot = config_lib.few_shot(
    'train[:50%]', 'test', shots=(5,), every=2
  )
  return config


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('a run')
  before = logging.get_verbosity()
  logging.set_verbosity(logging.INFO)
  train.train_and_evaluate(_config(), workdir)
  logging.set_verbosity(before)
  return workdir


@pytest.mark.gate
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
  row = results.best_row(run, BEST)
  assert (row['step'], row[BEST]) == (best, accuracies[best])


def test_the_log_ends_with_what_to_do_next(run):
  log = (run / 'train.log').read_text()
  command = log.partition('Classify images: ')[2].splitlines()[0]
  assert shlex.split(command)[2:] == [
    *('vit_jax.predict', f'--checkpoint={run}', 'IMAGE...')
  ]
  assert f'The best step by {BEST}: {run / "best"}' in log
  assert '--mistakes' not in log  # It saved no predictions.


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


def test_the_log_tells_the_classes_of_the_subset(run):
  log = (run / 'train.log').read_text()
  assert 'digits:01 shuffled(train)[:50%]: ' in log
  assert ': 144 images, 2 classes;' in log
  assert (
    "shuffled(train)[:50%]: 2 of 2 classes, with 66 ('1') to 78 ('0') examples."
  ) in log


def test_the_early_stopped_weights_are_as_good_as_was_measured(run, tmp_path):
  config = _config()
  config.checkpoint.best = ''
  config.init.checkpoint = str(run / 'best')
  found = evaluate.evaluate_only(config, tmp_path)
  best = results.best_row(run, BEST)
  for key in (BEST, 'validation/loss', 'few_shot/5shot/accuracy'):
    assert found[key] == pytest.approx(best[key], rel=1e-5), key


@pytest.mark.gate
def test_fine_tuning_starts_from_the_early_stopped_weights(run, tmp_path):
  config = _config()
  config.total_steps, config.epochs = 1, 0.0
  # One step whose learning rate is too small to change anything.
  config.schedule = config_lib.schedule('linear', peak=1e-30, warmup_steps=0)
  config.evals = {}
  config.checkpoint.best = ''
  config.init.checkpoint, config.init.new_head = str(run / 'best'), True
  train.train_and_evaluate(config, tmp_path)
  step = results.best_row(run, BEST)['step']
  saved = config_lib.load(tmp_path)['init']['checkpoint']
  assert saved == str(run / f'best/{step}')
  expected, found = (
    flax.traverse_util.flatten_dict(checkpoint.read_params(path)[0], sep='/')
    for path in (run / 'best', tmp_path / 'final')
  )
  assert expected.keys() == found.keys()
  for name in expected:
    if not name.startswith('head/'):
      np.testing.assert_allclose(
        found[name], expected[name], atol=1e-20, err_msg=name
      )
