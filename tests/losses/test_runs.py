"""Guards runs of masked patch prediction, and runs that start from them."""

import flax.traverse_util
import numpy as np
import pytest

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax.configs import finetune
from vit_jax.configs import masked_patch as masked_patch_config
from vit_jax.training import evaluate, train

pytestmark = pytest.mark.usefixtures('programs')


def _config(steps=300):
  """Returns the config of a run on digits of 8x8 px, in 16 patches."""
  config = masked_patch_config.get_config(
    f'ViT-B/2,digits,steps={steps},eval=test'
  )
  config.image_size, config.channels = (8, 8), 1
  config.model.update(width=32, depth=2, heads=4, mlp_dim=64, dtype='float32')
  config.data.update(batch_size=64, preprocess='resize', threads=0)
  config.schedule.peak = 5e-3
  config.log.tensorboard = False
  config.mesh.update(data=1, fsdp=1)
  return config


def _finetuning(workdir):
  config = finetune.get_config('ViT-B/2,digits')
  config.epochs = 0.0
  config.image_size, config.channels = (8, 8), 1
  config.model = _config().model
  config.data.update(batch_size=64, preprocess='resize', threads=0)
  config.total_steps = 1
  config.schedule.update(warmup_steps=0, peak=0.0)
  config.log.tensorboard = False
  config.mesh.data = 1
  config.init.checkpoint, config.evals = str(workdir), {}
  return config


def _flat_params(workdir):
  tree, _ = checkpoint.read_params(checkpoint.find(workdir))
  return flax.traverse_util.flatten_dict(tree, sep='/')


@pytest.mark.gate
def test_a_run_and_what_starts_from_it(tmp_path):
  config = _config()
  config.evals.few_shot = config_lib.evaluation(
    'test', 'few_shot', train_split='train', shots=(5,)
  )
  values = train.train_and_evaluate(config, tmp_path / 'run')
  # It predicts better than the most frequent colour.
  assert values['test/count'] == 360
  baseline = values['test/baseline_accuracy']
  assert 0.4 < baseline < 0.45
  assert values['test/accuracy'] > baseline + 0.08
  assert values['few_shot/5shot/accuracy'] > 0.2  # Chance is 0.1.

  config = _config()
  config.init.checkpoint = str(tmp_path / 'run')
  found = evaluate.evaluate_only(config, tmp_path / 'evaluated')
  for name in ('accuracy', 'loss', 'baseline_accuracy', 'count'):
    key = f'test/{name}'
    np.testing.assert_allclose(found[key], values[key], rtol=1e-6)

  # Fine-tuning starts with the encoder.
  config = _finetuning(tmp_path / 'run')
  train.train_and_evaluate(config, tmp_path / 'tuned')
  before, after = (_flat_params(tmp_path / name) for name in ('run', 'tuned'))
  # The learning rate is 0, so the shared weights keep their values.
  shared = before.keys() & after.keys()
  for name in shared:
    np.testing.assert_array_equal(after[name], before[name], err_msg=name)
  assert before.keys() - shared == {
    *('mask_embedding', 'patch_head/kernel', 'patch_head/bias'),
  }
  assert after.keys() - shared == {'head/kernel', 'head/bias'}
