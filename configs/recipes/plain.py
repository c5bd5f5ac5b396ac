"""Better plain ViT baselines: a short, simple recipe (arXiv:2205.01580).

    python -m vit_jax.main --workdir=DIR --config=configs/recipes/plain.py:S/16

S/16 reaches 76.5% on ImageNet after 90 epochs, and 80% after `epochs=300`. One
hundredth of the training images is held out, as in the paper.

By the plan, 90 epochs of B/16 take 1.5 device days on v4-128 and 0.24 on
h100x8.

Data of your own: the cheapest recipe to begin with, from some ten thousand
images on. It needs no long run, and none of its settings is for ImageNet alone.

Differs from big_vision (vit_s16_i1k.py) as configs/recipes/augreg.py does.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'plain', train='train[:99%]')
  return base.build(
    args,
    epochs=90,
    batch_size=1024,
    model={
      'pooling': 'gap',
      'position_embedding': 'sincos2d',
      'representation_size': -1,
    },
    keys={
      'data.preprocess': 'inception_crop|flip|rand_augment(2, 10)',
      'mixup_alpha': 0.2,
      'loss': config_lib.softmax(),
      **sections(weight_decay=0.1, peak=1e-3, warmup_steps=10_000),
    },
  )


def sections(*, weight_decay, **schedule):
  """Returns optimizer and schedule, with the usual values of big_vision."""
  return {
    'optimizer': config_lib.optimizer(
      'adamw',
      weight_decay=weight_decay,
      weight_decay_params='kernels',
      mu_dtype='bfloat16',
      clip_norm=1.0,
    ),
    'schedule': config_lib.schedule('cosine', **schedule),
  }
