"""SAM and GSAM: flat minima in place of augmentation (arXiv:2203.08065).

    python -m vit_jax.main --workdir=DIR --config=configs/recipes/sam.py:B/16

GSAM, the default, is big_vision's proj/gsam without augmentation. `kind=sam` is
SAM (arXiv:2010.01412) with the same rho throughout. 300 epochs with SAM reach
80.25% with B/16 on ImageNet (timm's copy of the authors' file). A step takes
two forward and two backward passes, so it costs twice as much as others do. By
the plan, 300 epochs of B/16 take 8.0 device days on v4-128 and 1.5 on h100x8.

Data of your own: it suits small sets from scratch, as it needs no augmentation.
Then rho is 0.05, our choice: with 0.6, a small ViT in batches of 32 stayed at
chance.

Differs from big_vision: the ascent is along the gradient of the whole batch,
not along that of each device's part.
"""

from vit_jax import config as config_lib
from vit_jax.configs import pretrain
from vit_jax.configs.recipes import base


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'sam', '[,kind=gsam|sam]', train='train[:99%]')
  gsam = args.get('kind', 'gsam') == 'gsam'
  first, last = 0.6, 0.1 if gsam else 0.6
  if args['data'] not in pretrain.KNOWN:
    first, last = 0.05, 0.05
  return base.build(
    args,
    epochs=300,
    batch_size=4096,
    model={'pooling': 'gap', 'head_bias': -10.0},
    keys={
      'loss': config_lib.sigmoid(),
      # big_vision decays by 1e-3 at the peak of 3e-3; here the rate multiplies.
      'optimizer': config_lib.optimizer(
        'adamw',
        weight_decay=1 / 3,
        weight_decay_params='kernels',
        clip_norm=1.0,
      ),
      'schedule': config_lib.schedule(
        'linear', peak=3e-3, warmup_steps=10_000, end=3e-5
      ),
      'sam.rho': first,
      'sam.rho_end': last,
      'sam.alpha': 0.6 if gsam else 0.0,
    },
  )
