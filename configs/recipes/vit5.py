"""ViT-5: today's parts in a plain ViT, trained as DeiT III (arXiv:2602.08071).

    python -m vit_jax.main --workdir=DIR --config=configs/recipes/vit5.py:B/16

RMSNorm, normalised queries and keys, learned and rotary positions, 4 registers,
and no bias of queries, keys and values. The rest, `stage` and `resolution`
included, is that of configs/recipes/deit3.py; L/16 trains for 400 epochs with
stochastic depth 0.35.

S/16, B/16 and L/16 reach 82.2, 84.2 and 84.9% on ImageNet; at 384 px B 85.4, L
86.0. Data of your own: as for DeiT. By the plan, 800 epochs of B/16 take 15
device days on v4-128 and 1.8 on h100x8.

Differs from the authors' code (wangf3014/ViT-5) as deit3.py does. There, the
class token and the registers begin with a deviation of 0.02, not 0 and 1e-6;
the class token has no learned position, and fine-tuning begins from a moving
average of the weights, with decay 0.99996. Registers follow the patches, and
the first half of a head turns with the row: by symmetry, nothing changes.
"""

from vit_jax.configs.recipes import base, deit3, stages

MODEL = {
  'norm': 'rms',
  'qk_norm': True,
  'qkv_bias': False,
  'registers': 4,
  'position_embedding': '1d',
  'rotary': 'axial',
  'rotary_base': 10_000.0,
  'rotary_registers': 100.0,
}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'vit5', deit3.OPTIONS)
  rows = deit3.rows(args, MODEL)
  if args['model'] == 'ViT-S/16':
    rows['finetune']['model']['stochastic_depth'] = 0.05
  if args['model'] == 'ViT-L/16':
    rows['pretrain']['epochs'] = 400
    rows['pretrain']['model']['stochastic_depth'] = 0.35
  return stages.choose(args, **rows)
