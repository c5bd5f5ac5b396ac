"""Guards runs that predict masked patches, and what starts from them."""

import numpy as np
import pytest

import vit_jax
from tests import tiny_run
from tests.interop import tiny
from vit_jax import checkpoint, data, models
from vit_jax import config as config_lib
from vit_jax.inspection import masked_patches
from vit_jax.training import evaluate, train
from vit_jax.workdir import metrics

# Tests of the parts, beside this file and in evaluators/, take seconds.
pytestmark = [pytest.mark.gate, pytest.mark.usefixtures('programs')]

LOSSES = {
  'mae': config_lib.mae(decoder_depth=1, decoder_width=16, decoder_heads=2),
  'masked_patch': config_lib.masked_patch(),
}
STEPS = {'mae': 40, 'masked_patch': 300}
# The weights that a classifier has no use for begin so.
OWN = {'mae': ('decoder/',), 'masked_patch': ('mask_embedding', 'patch_head/')}


def _config(loss, **changes):
  """Returns the config of a run on two digits of 8x8 px, in 16 patches."""
  config = tiny_run.tiny_config(
    {
      'model.name': 'ViT-Ti/2',
      'model.position_embedding': 'sincos2d_mae',
      'total_steps': STEPS[loss],
      'checkpoint.every': 20,
      'log.every': 10,
    }
  )
  config.loss = LOSSES[loss]
  config.schedule = config_lib.schedule('cosine', peak=1e-2, warmup_steps=2)
  config.evals.test = config_lib.evaluation('test', loss, every=20)
  for kind, own in (('few_shot', {'shots': (5,)}), ('knn', {'k': (5,)})):
    config.evals[kind] = config_lib.evaluation(
      'test', kind, train_split='train', **own
    )
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture(scope='module', params=LOSSES)
def finished(request, tmp_path_factory):
  """Returns the loss of a run, its work directory, and its last metrics."""
  loss, workdir = request.param, tmp_path_factory.mktemp('run')
  return loss, workdir, train.train_and_evaluate(_config(loss), workdir)


def test_a_run_learns_what_is_hidden(finished):
  loss, workdir, values = finished
  rows = [r for r in metrics.read(workdir) if 'test/loss' in r]
  assert rows[0]['test/loss'] > values['test/loss'] > 0
  assert values['test/count'] == 72
  if loss == 'mae':  # The patches' means would have the loss 1.
    assert values['test/loss'] < 0.95
    assert 'test/accuracy' not in values
  else:  # It predicts better than the most frequent colour.
    baseline = values['test/baseline_accuracy']
    assert 0.43 < baseline < 0.48
    assert values['test/accuracy'] > baseline + 0.08
  assert values['few_shot/5shot/accuracy'] > 0.6  # Chance is 0.5.
  assert values['knn/5nn/accuracy'] > 0.6


def test_fine_tuning_starts_with_the_encoder(finished, tmp_path):
  loss, workdir, _ = finished
  config = _config(loss, total_steps=1)
  config.loss, config.evals = config_lib.softmax(), {}
  config.schedule = config_lib.schedule('constant', peak=0.0, warmup_steps=0)
  config.init.checkpoint = str(workdir)
  train.train_and_evaluate(config, tmp_path)
  before, after = map(tiny_run.weights, (workdir, tmp_path))
  # The learning rate is 0, so the shared weights keep their values.
  head = {'head/kernel', 'head/bias'}
  tiny_run.assert_same_but(after, before, but=head)
  gone = {name for name in before if name.startswith(OWN[loss])}
  assert before.keys() - after.keys() == gone
  assert after.keys() - before.keys() == head


def test_loading_and_drawing(finished):
  image = data.open_source('digits:01').read('test', 0).image
  assert vit_jax.load(str(finished[1])).features(image).shape == (1, 16)
  seen, prediction, images, _ = masked_patches.predict_pictures(finished[1], 3)
  if finished[0] == 'mae':
    hidden = (seen == 128).reshape(3, 4, 2, 4, 2).all(axis=(2, 4))
    np.testing.assert_array_equal(hidden.sum(axis=(1, 2)), 12)
    shown = np.repeat(np.repeat(~hidden, 2, axis=1), 2, axis=2)
    np.testing.assert_array_equal(prediction[shown], images[shown])


def test_evaluations_and_a_run_that_goes_on(finished, tmp_path):
  loss, workdir, values = finished
  config = _config(loss, total_steps=1)
  config.init.checkpoint, config.init.new_head = str(workdir), False
  found = evaluate.evaluate_only(config, tmp_path / 'evaluated')
  for name in values:
    if name.startswith(('test/', 'few', 'knn')) and 'seconds' not in name:
      np.testing.assert_allclose(found[name], values[name], 1e-6)
  # A run goes on from all of the weights, which are of single blocks.
  config.model.scan = True
  config.evals, config.schedule.warmup_steps, config.schedule.peak = {}, 0, 0.0
  train.train_and_evaluate(config, tmp_path / 'continued')
  params, _ = checkpoint.read_params(tmp_path / 'continued')
  after = tiny.flat(models.unstack_blocks(params))
  before = tiny_run.weights(workdir)
  assert after.keys() == before.keys()
  tiny_run.assert_same_but(after, before, but=set())
