"""AugReg: how to train your ViT, by size of model and data (arXiv:2106.10270).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/augreg.py:B/16,data=imagenet21k,copy=SPEC

On ImageNet-21k, the settings are those that the authors recommend for each
model (google-research/vision_transformer, README); fine-tuned at 384 px
(configs/finetune.py), L/16 reaches 85.59% on ImageNet, B/16 85.49, S/16 83.73,
Ti/16 78.22, B/32 83.59, S/32 79.58, R50+L/32 85.99, R26+S/32 83.85, R+Ti/16
75.40. On ImageNet alone, they are those of big_vision (vit_i1k.py): at 224 px
B/16 reaches 79.15 and S/16 78.84%. `strength=` chooses another one.

By the plan, 300 epochs of B/16 on ImageNet take 4.1 device days on v4-128 and
0.74 on h100x8; those on ImageNet-21k have about ten times as many steps.

Data of your own: the fewer images, the more augmentation helps, and below about
a million none of it replaces trained weights (the paper's section 4.1).

Differs from big_vision: it decays weights by 1e-4 at the peak rate of 1e-3,
which is `weight_decay=0.1` here, where the rate multiplies it.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, plain

# Layers and magnitude of RandAugment, and mixup.
STRENGTHS = {
  'none': ('', 0.0),
  'light1': ('|rand_augment(2, 0)', 0.0),
  'light2': ('|rand_augment(2, 10)', 0.2),
  'medium1': ('|rand_augment(2, 15)', 0.2),
  'medium2': ('|rand_augment(2, 15)', 0.5),
  'strong1': ('|rand_augment(2, 20)', 0.5),
  'strong2': ('|rand_augment(2, 20)', 0.8),
}
# Model -> strength, weight decay, dropout and stochastic depth on ImageNet-21k.
IMAGENET21K = {
  'ViT-L/16': ('strong1', 0.1, 0.0),
  'ViT-B/16': ('medium1', 0.1, 0.0),
  'ViT-S/16': ('light1', 0.03, 0.0),
  'ViT-Ti/16': ('none', 0.03, 0.0),
  'ViT-B/32': ('light1', 0.1, 0.0),
  'ViT-S/32': ('none', 0.1, 0.0),
  'R50+ViT-L/32': ('medium1', 0.1, 0.1),
  'R26+ViT-S/32': ('light1', 0.1, 0.0),
  'R+ViT-Ti/16': ('none', 0.03, 0.0),
}
# Others have medium2.
IMAGENET = {'ViT-Ti/16': 'light1', 'ViT-S/32': 'light2'}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  options = f'[,strength={"|".join(STRENGTHS)}]'
  args = base.parse(argument, 'augreg', options, train='train[:99%]')
  model = args['model']
  strength, decay, drop = IMAGENET.get(model, 'medium2'), 0.1, 0.0
  if args['data'] == 'imagenet21k':
    strength, decay, drop = IMAGENET21K.get(model, IMAGENET21K['ViT-B/16'])
  augment, mixup = STRENGTHS[args.get('strength', strength)]
  return base.build(
    args,
    epochs=300,
    batch_size=4096,
    model={'dropout_rate': drop, 'stochastic_depth': drop} if drop else {},
    keys={
      'data.preprocess': f'inception_crop|flip{augment}',
      'mixup_alpha': mixup,
      'loss': config_lib.sigmoid(),
      **plain.sections(weight_decay=decay, peak=1e-3, warmup_steps=10_000),
    },
  )
