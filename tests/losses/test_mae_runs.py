"""Guards runs of masked autoencoders, and what is made of their weights."""

import flax.traverse_util
import numpy as np
import pytest

import vit_jax
from tests import tiny_run
from vit_jax import checkpoint, data, models
from vit_jax import config as config_lib
from vit_jax.inspection import masked_patches
from vit_jax.training import evaluate, train
from vit_jax.workdir import metrics

# `test_mae.py` and evaluators/test_patch_prediction.py take seconds.
pytestmark = [pytest.mark.gate, pytest.mark.usefixtures('programs')]

STEPS = 40


def _config(**changes):
  """Returns the config of a run on two digits of 8x8 px, in 16 patches."""
  config = tiny_run.tiny_config(
    {
      'model.name': 'ViT-Ti/2',
      'model.position_embedding': 'sincos2d_mae',
      'total_steps': STEPS,
      'checkpoint.every': 20,
      'log.every': 10,
    }
  )
  config.loss = config_lib.mae(
    decoder_depth=1, decoder_width=16, decoder_heads=2
  )
  config.schedule = config_lib.schedule('cosine', peak=1e-2, warmup_steps=2)
  config.evals.test = config_lib.evaluation('test', 'mae', every=20)
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """Returns the work directory of a run, and its last metrics."""
  workdir = tmp_path_factory.mktemp('run')
  return workdir, train.train_and_evaluate(_config(), workdir)


def _params(workdir):
  return checkpoint.read_params(checkpoint.find(workdir))[0]


def _flat_params(workdir):
  return flax.traverse_util.flatten_dict(_params(workdir), sep='/')


def test_a_run_learns_to_fill_in_what_is_hidden(finished):
  workdir, values = finished
  rows = [r for r in metrics.read(workdir) if 'test/loss' in r]
  assert rows[0]['test/loss'] > values['test/loss'] > 0
  # The patches' means would have the loss 1.
  assert values['test/loss'] < 0.95
  assert 'test/accuracy' not in values


def test_fine_tuning_leaves_the_decoder_out(finished, tmp_path):
  config = _config(total_steps=1)
  config.loss, config.evals = config_lib.softmax(), {}
  config.schedule = config_lib.schedule('constant', peak=0.0, warmup_steps=0)
  config.init.checkpoint = str(finished[0])
  train.train_and_evaluate(config, tmp_path)
  before, after = _flat_params(finished[0]), _flat_params(tmp_path)
  # The learning rate is 0, so the shared weights keep their values.
  for name in before.keys() & after.keys():
    np.testing.assert_array_equal(after[name], before[name], err_msg=name)
  gone = before.keys() - after.keys()
  assert gone == {name for name in before if name.startswith('decoder/')}
  assert after.keys() - before.keys() == {'head/kernel', 'head/bias'}


def test_loading_and_drawing(finished):
  image = data.open_source('digits:01').read('test', 0).image
  assert vit_jax.load(str(finished[0])).features(image).shape == (1, 16)
  seen, prediction, images, _ = masked_patches.predict_pictures(finished[0], 3)
  hidden = (seen == 128).reshape(3, 4, 2, 4, 2).all(axis=(2, 4))
  np.testing.assert_array_equal(hidden.sum(axis=(1, 2)), 12)
  shown = np.repeat(np.repeat(~hidden, 2, axis=1), 2, axis=2)
  np.testing.assert_array_equal(prediction[shown], images[shown])


def test_evaluations_of_features_and_of_weights(finished, tmp_path):
  config = _config(total_steps=1)
  config.init.checkpoint, config.init.new_head = str(finished[0]), False
  for kind, own in (('few_shot', {'shots': (5,)}), ('knn', {'k': (5,)})):
    config.evals[kind] = config_lib.evaluation(
      'test', kind, train_split='train', **own
    )
  config.model.scan = True  # The weights are of single blocks.
  found = evaluate.evaluate_only(config, tmp_path / 'evaluated')
  expected = finished[1]['test/loss']
  np.testing.assert_allclose(found['test/loss'], expected, rtol=1e-5)
  assert found['few_shot/5shot/accuracy'] > 0.6
  assert found['knn/5nn/accuracy'] > 0.6
  # A run goes on from the decoder's weights, too.
  config.evals, config.schedule.warmup_steps, config.schedule.peak = {}, 0, 0.0
  train.train_and_evaluate(config, tmp_path / 'continued')
  after = flax.traverse_util.flatten_dict(
    models.unstack_blocks(_params(tmp_path / 'continued')), sep='/'
  )
  before = _flat_params(finished[0])
  assert after.keys() == before.keys()
  for name in before:
    np.testing.assert_array_equal(after[name], before[name], err_msg=name)
