"""DeiT III from ImageNet-21k, then on ImageNet (arXiv:2204.07118).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/deit3_21k.py:B/16,copy=arrayrecord:/data/i21k

`stage=pretrain`, the default, trains on ImageNet-21k for 240 epochs (H/14: 90).
`stage=finetune` goes on from --config.init.checkpoint on ImageNet for 50, at
224 px. `stage=all` runs both, in DIR/pretrain and DIR/finetune.

S/16, B/16, L/16 and H/14 reach 83.1, 85.7, 87.0 and 87.2% on ImageNet. Other
models get the settings of S/16. Data of your own: these suit a million images
and more, as the crops are simple and there is no mixup. By the plan, the
first stage of B/16 takes 39 device days on v4-128 and 6.5 on h100x8.

Differs from the authors' code: see configs/recipes/deit3.py.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, deit, deit3, stages

# Model -> pixels, epochs, stochastic depth; that of the second stage.
SIZES = {
  'ViT-S/16': (224, 240, 0.05, 0.05),
  'ViT-B/16': (224, 240, 0.1, 0.15),
  'ViT-L/16': (224, 240, 0.3, 0.4),
  'ViT-H/14': (128, 90, 0.5, 0.45),
}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  options = '[,stage=pretrain|finetune|all]'
  args = base.parse(argument, 'deit3_21k', options, data='imagenet21k')
  px, epochs, depth, later = SIZES.get(args['model'], SIZES['ViT-S/16'])

  def row(epochs, px, depth, peak):
    keys = {
      'data.preprocess': f'simple_random_crop|{deit3.AUGMENT}',
      'loss': config_lib.softmax(label_smoothing=0.1),
      **deit.sections('lamb', weight_decay=0.02, peak=peak),
      'optimizer.eps': 1e-8,
    }
    return deit3.row(epochs, 2048, px, depth, keys, {})

  return stages.choose(
    args,
    pretrain=row(epochs, px, depth, 1e-3),
    finetune=row(50, 224, later, 3e-4) | {'data': 'imagenet2012'},
  )
