"""DeiT: ViTs from scratch on ImageNet alone (arXiv:2012.12877).

    python -m vit_jax.main --workdir=DIR --config=configs/recipes/deit.py:S/16

The models are `Ti/16`, `S/16` and `B/16`; others get the same settings. 300
epochs reach 72.2, 79.9 and 81.8% on ImageNet. Distillation from a teacher is in
configs/recipes/distill.py. By the plan, 300 epochs of B/16 take 5.6 device
days on v4-128 and 0.85 on h100x8.

Data of your own: this strong augmentation suits many images and hundreds of
epochs. With less, start from trained weights (configs/finetune.py).

Differs from the authors' code (facebookresearch/deit, main.py): the rate
changes at each step, not once an epoch, and its cosine begins after the
warm-up. Its moving average of the weights, which the published numbers do not
use, is left out.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base

AUGMENT = 'random_resized_crop|flip|timm_rand_augment("rand-m9-mstd0.5-inc1")'
ERASE = 'random_erasing(0.25, noise="normal")'

MODEL = {
  'gelu': 'exact',
  'stochastic_depth': 0.1,
  'stochastic_depth_rule': 'linear',
}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  return base.build(base.parse(argument, 'deit'), **row())


def row(**model):
  """Returns the arguments of `base.build`; `model` has options of the model."""
  return dict(
    epochs=300,
    batch_size=1024,
    test='eval_crop(0.875)',
    model=MODEL | model,
    keys={
      'data.preprocess': f'{AUGMENT}|{ERASE}',
      'data.repeats': 3,
      'mixup_alpha': 0.8,
      'cutmix_alpha': 1.0,
      'loss': config_lib.softmax(label_smoothing=0.1),
      **sections('adamw', weight_decay=0.05, peak=5e-4, peak_batch=512),
    },
  )


def sections(name, *, weight_decay, **schedule):
  """Returns optimizer and schedule of timm's kind, and Pillow's decoding."""
  usual = {'warmup_epochs': 5.0, 'warmup_start': 1e-6, 'end': 1e-5}
  return {
    'data.jpeg_dct': 'accurate',
    'optimizer': config_lib.optimizer(
      name, weight_decay=weight_decay, weight_decay_params='kernels'
    ),
    'schedule': config_lib.schedule('cosine', **usual | schedule),
  }
