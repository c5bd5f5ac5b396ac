"""DeiT III: a longer, simpler recipe for plain ViTs (arXiv:2204.07118).

    python -m vit_jax.main --workdir=DIR --config=configs/recipes/deit3.py:B/16

`stage=pretrain`, the default, trains for 800 epochs. `stage=finetune` goes on
from --config.init.checkpoint for 20, at `resolution=224` or `384`. `stage=all`
runs both, in DIR/STAGE. deit3_21k.py begins with ImageNet-21k.

S/16, B/16, L/16 and H/14 reach 81.4, 82.8, 84.0 and 83.5% on ImageNet at the
size that they train at; then at 224 px B 83.8, L 84.9, H 85.2; at 384 px S
83.4, B 85.1, L 85.8. `vit_jax.compare DIR --expected=auto` draws the published
curve. By the plan, 800 epochs of B/16 take 11 device days on v4-128 and
1.8 on h100x8. Data of your own: as for DeiT. Others train as S/16.

Differs from the authors' code (facebookresearch/deit) as deit.py does, and: the
class token has a position; LAMB's ratios are those of queries, keys and values
apart. Theirs, Apex's, clips gradients at norm 1; the paper names no clipping.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, deit, stages

OPTIONS = '[,stage=pretrain|finetune|all][,resolution=224|384]'
AUGMENT = 'flip|three_augment|colour_jitter(0.3, 0.3, 0.3)'
# Model -> pixels, peak, stochastic depth; that of the second stage by pixels.
SIZES = {
  'ViT-S/16': (224, 4e-3, 0.05, {224: 0.0, 384: 0.0}),  # 224: our choice.
  'ViT-B/16': (192, 3e-3, 0.2, {224: 0.2, 384: 0.15}),
  'ViT-L/16': (192, 3e-3, 0.45, {224: 0.45, 384: 0.4}),
  'ViT-H/14': (160, 3e-3, 0.6, {224: 0.55, 384: 0.55}),  # 384: our choice.
}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  args = base.parse(argument, 'deit3', OPTIONS)
  return stages.choose(args, **rows(args, {}))


def rows(args, model):
  """Returns the stages; `model` has options of the model."""
  px, peak, depth, later = SIZES.get(args['model'], SIZES['ViT-S/16'])
  at = int(args.get('resolution', 224))
  first = {
    'data.preprocess': f'random_resized_crop|{AUGMENT}',
    'data.repeats': 3,
    'mixup_alpha': 0.8,
    'loss': config_lib.sigmoid(binary=True, reduce='mean'),
    **deit.sections('lamb', weight_decay=0.05, peak=peak),
    'optimizer.eps': 1e-8,
  }
  second = {
    'data.preprocess': deit.AUGMENT,
    'mixup_alpha': 0.8,
    'init.new_head': False,
    'loss': config_lib.softmax(label_smoothing=0.1),
    **deit.sections('adamw', weight_decay=0.1, peak=1e-5),
  }
  return {
    'pretrain': row(800, 2048, px, depth, first, model),
    'finetune': row(20, 512, at, later[at], second, model),
  }


def row(epochs, batch_size, image_size, depth, keys, model):
  """Returns the arguments of `base.build` that all of DeiT III's runs share."""
  options = {
    'gelu': 'exact',
    'layer_scale': 1e-4,
    'stochastic_depth': depth,
    'stochastic_depth_rule': 'uniform',
  }
  return dict(
    epochs=epochs,
    batch_size=batch_size,
    image_size=image_size,
    test='eval_crop(1.0)',
    model=options | model,
    keys={'cutmix_alpha': 1.0} | keys,
  )
