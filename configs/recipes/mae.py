"""MAE: masked autoencoders, then fine-tuning (arXiv:2111.06377).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/recipes/mae.py:B/16,stage=all

`stage=pretrain`, the default, learns for 800 epochs to draw the hidden three
quarters of an image (the released weights: `epochs=1600`). `stage=finetune`
goes on from --config.init.checkpoint; with `tune=head`, it trains the head
alone, by LARS (on other data by AdamW). `stage=all` runs both, in DIR/STAGE.

After 1,600 epochs and fine-tuning, B/16, L/16 and H/14 reach 83.6, 85.9 and
86.9% on ImageNet; probes of B/16 67.8, of L/16 76.0%. The paper prints a layer
decay of 0.75 for B/16; its code has 0.65. Data of your own: pre-training needs
no labels, but hundred thousands of images. By the plan, 800 epochs of B/16 take
10.6 device days on v4-128 and 1.5 on h100x8.

Differs from the authors' code (facebookresearch/mae): pixels lie in [-1, 1];
the tokens of class and mask do not decay; fine-tuning keeps the positions as
they are; and the probe's features are not normalised over the batch.
"""

from vit_jax import config as config_lib
from vit_jax.configs.recipes import base, deit, stages

# Model -> fine-tuning's epochs, rate per 256 images, layer decay and stochastic
# depth; the probe's epochs (FINETUNE.md).
SIZES = {
  'ViT-B/16': (100, 5e-4, 0.65, 0.1, 90),
  'ViT-L/16': (50, 1e-3, 0.75, 0.2, 50),
  'ViT-H/14': (50, 1e-3, 0.75, 0.3, 50),
}
MODEL = {'gelu': 'exact', 'position_embedding': 'sincos2d_mae'}


def get_config(argument=None):
  """Returns the config of `MODEL[,OPTION=VALUE ...]`, see `base.OPTIONS`."""
  options = '[,stage=pretrain|finetune|all][,tune=all|head]'
  args = base.parse(argument, 'mae', options)
  epochs, peak, layer_decay, depth, probe_epochs = SIZES.get(
    args['model'], SIZES['ViT-B/16']
  )
  pretrain = {
    'data.preprocess': 'random_resized_crop(min_area=0.2)|flip',
    'loss': config_lib.mae(mask=0.75),
    **sections('adamw', 0.05, peak=1.5e-4, warmup_epochs=40.0),
    'optimizer.b2': 0.95,
  }
  finetune = {
    'data.preprocess': f'{deit.AUGMENT}|{deit.ERASE}',
    'mixup_alpha': 0.8,
    'cutmix_alpha': 1.0,
    'tuning.layer_decay': layer_decay,
    'loss': config_lib.softmax(label_smoothing=0.1),
    **sections('adamw', 0.05, peak=peak, end=1e-6),
  }
  probe = {
    'data.preprocess': 'random_resized_crop|flip',
    'tuning.train': 'head',
    'loss': config_lib.softmax(),
    **sections('lars', 0.0, peak=0.1, warmup_epochs=10.0),
  }
  pooled = {'pooling': 'gap_patches', 'final_norm': 'pooled'}
  tuned = deit.MODEL | MODEL | pooled | {'stochastic_depth': depth}
  later = row(epochs, 1024, finetune, tuned)
  if args.get('tune') == 'head':
    later = row(probe_epochs, 16_384, probe, MODEL | {'head_stddev': 0.01})
  first = row(800, 4096, pretrain, MODEL)
  return stages.choose(args, pretrain=first, finetune=later)


def row(epochs, batch_size, keys, model):
  """Returns the arguments of `base.build` of a run."""
  sizes = dict(epochs=epochs, batch_size=batch_size, image_size=224)
  return dict(test='eval_crop(0.875)', model=model, keys=keys, **sizes)


def sections(name, decay, **schedule):
  """Returns optimizer and schedule; rates are for 256 images of a batch."""
  usual = {'peak_batch': 256, 'warmup_start': 0.0, 'end': 0.0}
  return deit.sections(name, weight_decay=decay, **usual | schedule)
