"""The paper's runs in miniature: minutes on two CPU cores, without a download.

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/mini.py:MODEL,DATASET[,OPTION=VALUE ...]
    python -m vit_jax.main --workdir=DIR \\
        --config=configs/mini.py:MODEL,TASK[,OPTION=VALUE ...] \\
        --config.init.checkpoint=PRETRAINED_WORKDIR

MODEL is a model of the paper, `ViT-L/16`, `R50+ViT-B/32` or `BiT-R152x2`, with
a sixteenth of the width (ResNets: a quarter) and a quarter of the layers and
heads, for images of 32 px: patches of 8 px stand for 32 at 224 px, and of 4 px
for 16 and 14.

DATASET to pre-train on is `imagenet2012`, `imagenet21k` or `jft300m`: 200,
2,200 and 48,000 rendered scenes (`shapes`), about in the proportions of the
real ones, each with six labels. `epochs=E` is in the paper's own epochs, whose
cost keeps its proportion too: 7 of JFT-300M are 2,000 steps of 64 images.
`optimizer=sgd` is Table 7's; `subset=SIZE` trains on so many scenes, in as many
steps (Figure 4).

TASK to fine-tune on is one of `TASKS`, 200 steps on 500 to 1,437 images.

What comes out answers the paper's questions at this scale, and no others.
Five-shot accuracy on `imagenet` after `jft300m`: 77% with ViT-B/32 and 85% with
BiT-R50x1, in one or two minutes each (54 classes).
"""

import dataclasses

from configs import pretrain
from vit_jax import config as config_lib
from vit_jax import models

USAGE = (
  'Usage: configs/mini.py:MODEL,DATASET[,epochs=E][,optimizer=adam|sgd]'
  '[,subset=SIZE] or configs/mini.py:MODEL,TASK, with DATASET one of'
  ' imagenet2012, imagenet21k, jft300m, and TASK one of imagenet, cifar10,'
  ' cifar100, pets, flowers.'
)
IMAGE_SIZE = 32
LARGER = 40  # In place of the paper's 512 and 518 px beside 384.
BATCH_SIZE = 64
RESIZE = 'resize(antialias=True)'

# A sixteenth of the width, a quarter of the layers and heads.
SIZES = {
  'b': dict(width=24, depth=3, heads=2, mlp_dim=96),
  'B': dict(width=48, depth=3, heads=3, mlp_dim=192),
  'L': dict(width=64, depth=6, heads=4, mlp_dim=256),
  'H': dict(width=80, depth=8, heads=4, mlp_dim=320),
}
PATCHES = {'32': 8, '16': 4, '14': 4}
# Stages of a hybrid's ResNet until its map has a pixel for each such patch.
HYBRID_BLOCKS = {'32': (2, 2), '16': (4,)}
# Root channels of a ResNet of factor 1, over 64.
RESNET_WIDTH = 0.25


@dataclasses.dataclass(frozen=True)
class Dataset:
  """What stands for a pre-training set.

  Attributes:
    scenes: of `shapes`.
    epochs: the paper's.
    steps: of that many epochs.
  """

  scenes: int
  epochs: float
  steps: int


# Steps in proportion to the images that the paper's runs see.
DATASETS = {
  'imagenet2012': Dataset(200, 300, 360),
  'imagenet21k': Dataset(2_200, 90, 1_060),
  'jft300m': Dataset(48_000, 7, 2_000),
}
# Name: data spec, and the parts of it to train on and to report.
TASKS = {
  'imagenet': (
    'shapes:colour+position',
    'validation[:1000]',
    'test[:1000]',
  ),
  'cifar10': ('digits', 'train', 'test'),
  'cifar100': (
    'shapes:size+count',
    'validation[:1000]',
    'test[:1000]',
  ),
  'pets': (
    'shapes:shape',
    'validation[:500]',
    'test[:1000]',
  ),
  'flowers': (
    'shapes:orientation',
    'validation[:500]',
    'test[:1000]',
  ),
}


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET or TASK[,OPTION=VALUE ...]`."""
  args = config_lib.parse_argument(
    argument,
    positional=('model', 'data'),
    options={'epochs': float, 'optimizer': str, 'subset': int},
    usage=USAGE,
  )
  config = config_lib.default()
  _set_model(config, models.paper_name(args['model']))
  config.image_size = (IMAGE_SIZE, IMAGE_SIZE)
  config.data.batch_size = BATCH_SIZE
  config.data.preprocess = RESIZE
  config.log.tensorboard = False
  if args['data'] in DATASETS:
    _set_pretraining(config, DATASETS[args['data']], args)
  elif args['data'] in TASKS:
    for option in ('epochs', 'optimizer', 'subset'):
      if option in args:
        raise ValueError(f'{option}= is for pre-training. {USAGE}')
    _set_transfer(config, *TASKS[args['data']])
  else:
    raise ValueError(f'{args["data"]!r} is no data set here. {USAGE}')
  config.checkpoint.every = config.log.every = config.total_steps
  return config


def _set_model(config, name):
  model = config.model
  model.name = name
  if name.startswith('BiT-'):
    full = models.build(name, num_classes=1)
    model.blocks = tuple(max(1, round(n / 4)) for n in full.blocks)
    model.width_factor = RESNET_WIDTH * full.width_factor
    return
  size, _, patch = name.rpartition('ViT-')[2].partition('/')
  patches = HYBRID_BLOCKS if '+' in name else PATCHES
  if size not in SIZES or patch not in patches or name[0] not in 'VR':
    raise ValueError(
      f'{name!r} has no miniature: sizes are {", ".join(SIZES)}, patches'
      f' {", ".join(patches)}. {USAGE}'
    )
  model.update(SIZES[size])
  if '+' in name:
    model.resnet_blocks = HYBRID_BLOCKS[patch]
    model.resnet_width = RESNET_WIDTH
  else:
    model.patch_size = (PATCHES[patch], PATCHES[patch])
  model.dropout_rate = 0.0


def _set_pretraining(config, dataset, args):
  config.data.dataset = 'shapes:all'
  config.data.max_labels = 6
  config.data.train_split = f'train[:{dataset.scenes}]'
  if 'subset' in args:
    config.data.train_split = (
      f'shuffled({config.data.train_split})[:{args["subset"]}]'
    )
  epochs = args.get('epochs', dataset.epochs)
  config.total_steps = round(dataset.steps * epochs / dataset.epochs)
  config.loss.name = 'sigmoid'
  config.model.head_bias = -1.4  # The log-odds of 6 labels of 31.
  warmup = config.total_steps // 10
  optimizer = args.get('optimizer', 'adam')
  if optimizer not in ('adam', 'sgd'):
    raise ValueError(
      f"optimizer={optimizer!r} is unknown; choose one of ['adam', 'sgd']."
      f' {USAGE}'
    )
  if optimizer == 'adam':
    config.optimizer = config_lib.adam(weight_decay=0.03)
    config.schedule = config_lib.schedule(
      'linear', peak=3e-3, warmup_steps=warmup
    )
  else:
    config.optimizer = config_lib.sgd(weight_decay=1e-4)
    config.schedule = config_lib.schedule(
      'staircase',
      peak=0.1,
      warmup_steps=warmup,
      boundaries=pretrain.SGD_BOUNDARIES,
      factor=0.1,
    )
  # Figure 4's early stopping looks at it.
  config.evals.validation = config_lib.evaluation(
    'train[49000:]', preprocess=RESIZE, every=max(config.total_steps // 5, 1)
  )
  spec, _, test = TASKS['imagenet']
  config.evals.few_shot = config_lib.few_shot(
    'validation',
    test,
    dataset=spec,
    preprocess=RESIZE,
    shots=(5,),
    every=max(config.total_steps // 5, 1),
  )


def _set_transfer(config, spec, train, test):
  config.data.dataset = spec
  if spec == 'digits':
    config.data.preprocess = 'resize'
  config.data.train_split = train
  config.total_steps = 200
  config.optimizer = config_lib.sgd(clip_norm=1.0)
  config.schedule = config_lib.schedule('cosine', peak=0.03, warmup_steps=20)
  config.evals.test = config_lib.evaluation(
    test, preprocess=config.data.preprocess
  )
