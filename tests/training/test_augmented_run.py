"""Guards: a run with all augmentations, on one device and on eight."""

import numpy as np
import pytest

from tests import tiny_run
from tests.tiny_run import SIZES
from vit_jax import config as config_lib
from vit_jax.configs import pretrain
from vit_jax.training import train

CHANGES = {
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


def _config(devices):
  config = pretrain.get_config('ViT-Ti/4,digits:01,image_size=8,epochs=300')
  config.model.update(SIZES)
  config.channels = 1
  config.loss.label_smoothing = 0.1
  config.evals = {}
  config.checkpoint.best = ''
  config.schedule = config_lib.schedule('constant', peak=1e-2, warmup_steps=0)
  config.update_from_flattened_dict(CHANGES)
  config.mesh.data, config.mesh.fsdp = devices, 1
  return config


@pytest.mark.gate
def test_eight_devices_train_like_one(tmp_path):
  rows = {}
  for devices in (1, 8):
    train.train_and_evaluate(_config(devices), tmp_path / f'{devices}')
    rows[devices] = [
      row['train/loss']
      for row in tiny_run.rows_but_times(tmp_path / f'{devices}')
      if 'train/loss' in row
    ]
  assert len(rows[1]) == 4
  np.testing.assert_allclose(rows[8], rows[1], rtol=1e-4)
