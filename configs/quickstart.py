"""The paper's story in minutes, on real scanned digits, without a network.

    python -m vit_jax.main --config=configs/quickstart.py --workdir=DIR

Three stages: pre-train a small ViT on the digits 1, 3, 5, 8 and 9 at 16x16 px;
fine-tune it on the digits 0, 2, 4, 6 and 7 at twice that resolution, from 15
examples per class; train the same model from scratch, for as long and on the
same 75 images. The images are 8x8 scans (scikit-learn's `digits`), enlarged.

Learning rates and lengths were chosen on the `validation` images, separately
for fine-tuning and from scratch. `test` is all other images. All stages take
about three minutes on two CPU cores; LOG.md has the accuracies of three seeds.
"""

import ml_collections

from vit_jax import config as config_lib

PRETRAIN_DIGITS, TRANSFER_DIGITS = '13589', '02467'
RESOLUTION = 16

# The order of `digits` is balanced: the first 75 images have 15 per class.
TRAIN = 'train[:75]'
VALIDATION = 'train[75:350]'
TEST = 'train[350:]+test'


def get_config(argument=None):
  """Returns all stages, or one of them: `quickstart.py:pretrain`."""
  stages = {
    'pretrain': pretrain(),
    'finetune': transfer(from_scratch=False),
    'scratch': transfer(from_scratch=True),
  }
  if argument:
    if argument not in stages:
      raise ValueError(
        f'Unknown stage {argument!r}; choose one of {list(stages)}, or none'
        ' for all three.'
      )
    return stages[argument]
  return ml_collections.ConfigDict({'stages': stages, 'order': tuple(stages)})


def _base(digits, resolution, batch_size):
  config = config_lib.default()
  config.data.dataset = f'digits:{digits}'
  config.image_size = (resolution, resolution)
  config.channels = 1
  config.model.name = 'ViT-Ti/4'
  config.model.width = 96
  config.model.depth = 4
  config.model.heads = 3
  config.model.mlp_dim = 384
  config.data.batch_size = batch_size
  # Shifts an image by at most one scanned pixel to each side.
  config.data.preprocess = f'resize|pad({resolution // 8})|random_crop'
  config.log.every = 100
  return config


def pretrain():
  """Returns the config of pre-training on five digits, with Adam."""
  config = _base(PRETRAIN_DIGITS, RESOLUTION, batch_size=64)
  config.data.train_split = 'train'
  config.total_steps = 1600
  config.model.representation_size = 96
  config.optimizer = config_lib.optimizer(
    'adamw', weight_decay=0.1, clip_norm=1.0
  )
  config.schedule = config_lib.schedule('linear', peak=1e-3, warmup_steps=100)
  config.evals.test = config_lib.evaluation('test')
  config.checkpoint.every = 400
  return config


def transfer(*, from_scratch):
  """Returns the config of 100 steps on the other digits, at twice the size."""
  config = _base(TRANSFER_DIGITS, 2 * RESOLUTION, batch_size=48)
  config.data.train_split = TRAIN
  config.total_steps = 100
  if from_scratch:
    config.optimizer = config_lib.optimizer(
      'adamw', weight_decay=0.1, clip_norm=1.0
    )
    config.schedule = config_lib.schedule('cosine', peak=3e-3, warmup_steps=20)
  else:
    config.init.checkpoint = 'stage:pretrain'
    config.optimizer = config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0)
    config.schedule = config_lib.schedule('cosine', peak=0.1, warmup_steps=20)
  config.evals.validation = config_lib.evaluation(VALIDATION)
  config.evals.test = config_lib.evaluation(TEST)
  config.log.every = 20
  config.checkpoint.every = 50
  return config
