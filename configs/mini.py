"""The paper's runs in miniature: minutes on two CPU cores, without a download.

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/mini.py:MODEL,DATASET[,OPTION=VALUE ...]
    python -m vit_jax.main --workdir=DIR \\
        --config=configs/mini.py:MODEL,TASK[,OPTION=VALUE ...] \\
        --config.init.checkpoint=PRETRAINED_WORKDIR

MODEL is a model of the paper, such as `ViT-L/16`, `R50+ViT-B/32` or
`BiT-R152x2`, with an eighth of the width, a sixth of the layers and a quarter
of the heads (ResNets: an eighth of the width, a quarter of the layers). Images
have 24 px: patches of 8 px stand for 32 at 224 px, and of 4 px for 16 and 14.
The head for pre-training has no hidden layer: with one, ViTs learn only colours
in so few steps.

DATASET, to pre-train on, is `imagenet2012`, `imagenet21k` or `jft300m`: 200,
2,200 and 48,000 rendered scenes (`shapes`), about in the proportions of the
real sets, each with six labels. `epochs=E` counts the paper's epochs; their
costs keep their proportions, too: 7 epochs of JFT-300M are 400 steps of 64
images. On all data sets, rates have the proportions of Table 3's for JFT-300M
and fall linearly, and the weight decay is the same. `optimizer=sgd` is Table
7's; `subset=SIZE` trains on SIZE scenes with the same number of steps (Figure
4); `evals=N` evaluates about N times in a run instead of five times;
`few_shot=average` measures five-shot accuracy on five tasks (Figure 8);
`objective=masked_patch` is self-supervision (B.1.2).

TASK, to fine-tune on, is one of `TASKS`: 80 steps on 500 to 1,437 images.

`of=SPEC` replaces the scenes by your own data, such as `folder:/data/cifar10`.
In pre-training, DATASET is then a part of 90% of its split `train`, in the same
proportions. The task `imagenet` then fine-tunes on the other 10%, which early
stopping uses, too, and tests on its split `test`.

The results answer the paper's questions only at this scale.
"""

import dataclasses

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.configs import pretrain

USAGE = (
  'Usage: configs/mini.py:MODEL,DATASET[,epochs=E][,optimizer=adam|sgd]'
  '[,subset=SIZE][,evals=N][,few_shot=imagenet|average]'
  '[,objective=supervised|masked_patch][,of=SPEC] or'
  ' configs/mini.py:MODEL,TASK[,of=SPEC], with DATASET one of imagenet2012,'
  ' imagenet21k, jft300m, and TASK one of imagenet, cifar10, cifar100, pets,'
  ' flowers, svhn, eurosat, clevr_count, clevr_dist, dsprites_location,'
  ' dsprites_orientation.'
)
IMAGE_SIZE = 24
LARGER = 32  # In px; stands for 512 and 518 px, as IMAGE_SIZE does for 384.
BATCH_SIZE = 64
RESIZE = 'resize(antialias=True)'
# ViT-B's learning rate, in place of Table 3's 8e-4. Other models' rates keep
# the table's proportions.
PEAK = 3e-3
WEIGHT_DECAY = 0.03

# Standard deviation of initial position embeddings. The paper's 0.02 is so
# small beside the patches that ViTs need more steps to learn positions.
POSITION_STDDEV = 0.5
# For relative position embeddings, which act only on attention (Table 8).
RELATIVE_STDDEV = 8.0

# An eighth of the width, a sixth of the layers, a quarter of the heads.
SIZES = {
  'b': dict(width=48, depth=2, heads=2, mlp_dim=192),
  'B': dict(width=96, depth=2, heads=3, mlp_dim=384),
  'L': dict(width=128, depth=4, heads=4, mlp_dim=512),
  'H': dict(width=160, depth=5, heads=4, mlp_dim=640),
}
PATCHES = {'32': 8, '16': 4, '14': 4}
# Blocks in each stage of a hybrid's ResNet; its map has one pixel per patch.
HYBRID_BLOCKS = {'32': (2, 2), '16': (4,)}
# Factor of a ResNet's channels. With it, R50x1 has a sixth of ViT-B/32's
# operations, but takes as long on a CPU, where narrow convolutions are slow; in
# the paper both have about the same cost.
RESNET_WIDTH = 0.125


@dataclasses.dataclass(frozen=True)
class Dataset:
  """The miniature of a pre-training set.

  Attributes:
    scenes: the number of `shapes` scenes.
    epochs: the paper's number of epochs.
    steps: the steps that stand for that many epochs.
  """

  scenes: int
  epochs: float
  steps: int


# Steps grow with the number of images that the paper's runs see.
DATASETS = {
  'imagenet2012': Dataset(200, 300, 73),
  'imagenet21k': Dataset(2_200, 90, 213),
  'jft300m': Dataset(48_000, 7, 400),
}
# The part of the user's own training data that is held out, in percent.
HELD_OUT = 10


def _scenes(factors, train=1_000):
  return f'shapes:{factors}', f'validation[:{train}]', 'test[:1000]'


# Name -> data spec, and its splits to train on and to report. The tasks from
# svhn on are VTAB's, as are pets and cifar100.
TASKS = {
  'imagenet': _scenes('colour+position'),
  'cifar10': ('digits', 'train', 'test'),
  'cifar100': _scenes('colour+size+count'),
  'pets': _scenes('shape+colour', 500),
  'flowers': _scenes('orientation+colour', 500),
  'svhn': ('digits', 'train[:1000]', 'test'),
  'eurosat': _scenes('colour+size'),
  'clevr_count': _scenes('count'),
  'clevr_dist': _scenes('size'),
  'dsprites_location': _scenes('position'),
  'dsprites_orientation': _scenes('orientation'),
}
# The tasks that `few_shot=average` measures.
FEW_SHOT = ('imagenet', 'cifar10', 'cifar100', 'pets', 'flowers')


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET or TASK[,OPTION=VALUE ...]`."""
  args = config_lib.parse_argument(
    argument,
    positional=('model', 'data'),
    options={
      **{'epochs': float, 'optimizer': str, 'subset': int},
      **{'evals': int, 'few_shot': str, 'objective': str, 'of': str},
    },
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
    for option in args.keys() - {'model', 'data', 'of'}:
      raise ValueError(f'{option}= is for pre-training. {USAGE}')
    _set_transfer(config, *_task(args['data'], args.get('of', '')))
  else:
    raise ValueError(f'{args["data"]!r} is not one of its data sets. {USAGE}')
  config.checkpoint.every = config.log.every = config.total_steps
  return config


def _choice(args, key, choices):
  """Returns an option's value; the first choice if it is not given."""
  value = args.get(key, choices[0])
  if value not in choices:
    raise ValueError(
      f'{key}={value!r} is unknown; choose one of {list(choices)}. {USAGE}'
    )
  return value


def _task(name, own):
  """Returns a task's data spec, training split and test split."""
  if own and name == 'imagenet':
    return own, f'shuffled(train)[{100 - HELD_OUT}%:]', 'test'
  return TASKS[name]


def _set_model(config, name):
  model = config.model
  model.name = name
  if name.startswith(('BiT-', 'AxialResNet')):
    full = models.build(name, num_classes=1)
    model.blocks = tuple(max(1, round(n / 4)) for n in full.blocks)
    model.width_factor = RESNET_WIDTH * full.width_factor
    if name.startswith('Axial'):
      model.heads = 2  # Each has 8 channels.
    return
  size, _, patch = name.rpartition('ViT-')[2].partition('/')
  patches = HYBRID_BLOCKS if '+' in name else PATCHES
  if size not in SIZES or patch not in patches or name[0] not in 'VRA':
    raise ValueError(
      f'{name!r} has no miniature: sizes are {", ".join(SIZES)}, patches'
      f' {", ".join(patches)}. {USAGE}'
    )
  model.update(SIZES[size])
  model.position_stddev = POSITION_STDDEV
  if '+' in name:
    model.resnet_blocks = HYBRID_BLOCKS[patch]
    model.resnet_width = RESNET_WIDTH
  else:
    model.patch_size = (PATCHES[patch], PATCHES[patch])
  model.dropout_rate = 0.0


def rate(papers):
  """Returns the miniature's learning rate for one of the paper's for JFT."""
  return PEAK * papers / pretrain.JFT.peak['ViT-B/16']


def decay(papers):
  """Returns the miniature's weight decay for one of the paper's for JFT."""
  return papers * WEIGHT_DECAY / pretrain.JFT.weight_decay


def _set_pretraining(config, dataset, args):
  _set_data(config, dataset, args)
  epochs = args.get('epochs', dataset.epochs)
  config.total_steps = round(dataset.steps * epochs / dataset.epochs)
  warmup = config.total_steps // 10
  most = max(config.total_steps, 1)
  often = args.get('evals', min(5, most))
  if not 1 <= often <= most:
    raise ValueError(f'evals={often}, expected 1 to {most}, the steps. {USAGE}')
  every = config.total_steps // often
  config.loss.name = 'sigmoid'
  config.model.head_bias = -1.4  # The log-odds of 6 labels out of 31.
  if _choice(args, 'optimizer', ('adam', 'sgd')) == 'adam':
    config.optimizer = config_lib.adam(weight_decay=WEIGHT_DECAY)
    config.schedule = config_lib.schedule(
      'linear',
      peak=rate(pretrain.JFT.peak.get(config.model.name, pretrain.JFT.others)),
      warmup_steps=warmup,
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
  validation = dict(split=_held_out(args), preprocess=RESIZE, every=every)
  config.evals.validation = config_lib.evaluation(**validation)
  # Accuracy saturates with six labels per image.
  config.checkpoint.best = 'validation/loss'
  if _choice(args, 'objective', ('supervised', 'masked_patch')) != 'supervised':
    # As in configs/masked_patch.py.
    config.loss = config_lib.masked_patch()
    config.optimizer = config_lib.adam()
    config.schedule = config_lib.schedule(
      'cosine', peak=rate(2e-4), warmup_steps=warmup
    )
    config.model.head_bias = 0.0
    config.model.dropout_rate = None
    config.evals.validation = config_lib.masked_patch_evaluation(**validation)
  for name in _few_shot_tasks(args):
    task = _task(name, args.get('of', ''))
    if name == 'imagenet':
      config.evals.few_shot = _few_shot(*task, every)
    else:
      # The average needs only the end of a run, so these have no curve.
      config.evals[f'few_shot_{name}'] = _few_shot(*task, 0)


def _set_data(config, dataset, args):
  """Sets the training data: a part of the scenes, or of the user's own data."""
  if 'of' in args:
    whole = DATASETS['jft300m'].scenes
    images = args.get('subset', dataset.scenes)
    percent = f'{(100 - HELD_OUT) * images / whole:.3f}'.rstrip('0').rstrip('.')
    config.data.dataset = args['of']
    config.data.train_split = f'shuffled(train)[:{percent}%]'
    return
  config.data.dataset = 'shapes:all'
  config.data.max_labels = 6
  config.data.train_split = f'train[:{dataset.scenes}]'
  if 'subset' in args:
    config.data.train_split = (
      f'shuffled({config.data.train_split})[:{args["subset"]}]'
    )


def _held_out(args):
  """Returns the split for early stopping (Figure 4)."""
  return (
    f'shuffled(train)[{100 - HELD_OUT}%:]' if 'of' in args else 'train[49000:]'
  )


def _few_shot_tasks(args):
  chosen = _choice(args, 'few_shot', ('imagenet', 'average'))
  return FEW_SHOT if chosen == 'average' else FEW_SHOT[:1]


def _few_shot(spec, train, test, every):
  """Returns a five-shot evaluation on a task's data."""
  if spec.startswith('shapes:'):
    train = 'validation'  # The whole split, as there are up to 72 classes.
  elif test == 'test' and spec != 'digits':
    train = 'train'  # The user's own data: a part may lack classes.
  return config_lib.few_shot(
    train,
    test,
    dataset=spec,
    preprocess=RESIZE if spec != 'digits' else 'resize',
    shots=(5,),
    every=every,
  )


def _set_transfer(config, spec, train, test):
  config.data.dataset = spec
  if spec == 'digits':
    config.data.preprocess = 'resize'
  config.data.train_split = train
  config.total_steps = 80
  config.optimizer = config_lib.sgd(clip_norm=1.0)
  config.schedule = config_lib.schedule('cosine', peak=0.03, warmup_steps=8)
  config.evals.test = config_lib.evaluation(
    test, preprocess=config.data.preprocess
  )
