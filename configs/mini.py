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
The head for pre-training has no hidden layer, and position embeddings begin
with a standard deviation of 0.5 instead of 0.02: otherwise ViTs learn only
colours in so few steps (LOG.md).

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
from collections.abc import Mapping
from typing import Any

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.configs import pretrain

USAGE = (
  'Usage: configs/mini.py:MODEL,DATASET[,epochs=7.0][,optimizer=adam|sgd]'
  '[,subset=200][,evals=5][,few_shot=imagenet|average]'
  '[,objective=supervised|masked_patch][,of=SPEC] or'
  ' configs/mini.py:MODEL,TASK[,of=SPEC], with DATASET one of imagenet2012,'
  ' imagenet21k, jft300m, and TASK one of imagenet, cifar10, cifar100, pets,'
  ' flowers, svhn, eurosat, clevr_count, clevr_dist, dsprites_location,'
  ' dsprites_orientation.'
)
# Of images that are not augmented.
RESIZE = 'resize(antialias=True)'
# Of dimensions in Figure 8, at all smaller scales.
_DIVISORS = {'width': 8, 'mlp_dim': 8, 'heads': 4}


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

  def epochs_of(self, steps: float) -> int:
    """Returns the whole number of epochs that has nearly so many steps."""
    return round(steps * self.epochs / self.steps)


@dataclasses.dataclass(frozen=True)
class Scale:
  """What is smaller than in the paper.

  Attributes:
    usage: of the config file, for error messages.
    image_size: in pixels.
    larger: stands for 512 and 518 px, as `image_size` does for 384.
    batch_size: of pre-training and fine-tuning.
    peak: ViT-B's learning rate, in place of Table 3's 8e-4. Other models' rates
      keep the table's proportions.
    weight_decay: in place of Table 3's 0.1.
    position_stddev: standard deviation of initial position embeddings.
    relative_stddev: the same for relative ones, which act only on attention
      (Table 8); None: the model's own.
    sizes: letter of a ViT -> its dimensions.
    depths: the paper's number of blocks in Figure 8 -> ours.
    patches: the paper's patch size at 224 px -> ours.
    hybrid_blocks: the paper's patch size -> blocks in each stage of a hybrid's
      ResNet; its map has one pixel per patch.
    resnet_width: factor of a ResNet's channels.
    resnet_depth: divisor of a ResNet's blocks.
    datasets: pre-training set -> its size and steps.
    augment: of training images, of the user's own data.
    tuning_steps: of fine-tuning.
  """

  usage: str
  image_size: int
  larger: int
  batch_size: int
  peak: float
  weight_decay: float
  position_stddev: float
  relative_stddev: float | None
  sizes: Mapping[str, Mapping[str, int]]
  depths: Mapping[int, int]
  patches: Mapping[str, int]
  hybrid_blocks: Mapping[str, tuple[int, ...]]
  resnet_width: float
  resnet_depth: int
  datasets: Mapping[str, Dataset]
  augment: str
  tuning_steps: int

  def option(self, key: str, value: Any) -> Any:
    """Returns our value for one that the paper sets by a config key."""
    name = key.removeprefix('model.')
    if name == 'depth':
      return self.depths[value]
    if name in _DIVISORS:
      return value // _DIVISORS[name]
    if key == 'schedule.peak':
      return self.rate(value)
    if key == 'optimizer.weight_decay':
      return self.decay(value)
    return value

  def rate(self, papers: float) -> float:
    """Returns the learning rate for one of the paper's for JFT-300M."""
    return self.peak * papers / pretrain.JFT.peak['ViT-B/16']

  def decay(self, papers: float) -> float:
    """Returns the weight decay for one of the paper's for JFT-300M."""
    return papers * self.weight_decay / pretrain.JFT.weight_decay


MINI = Scale(
  usage=USAGE,
  image_size=24,
  larger=32,
  batch_size=64,
  peak=3e-3,
  weight_decay=0.03,
  # The paper's 0.02 is so small beside the patches that ViTs need four times as
  # many steps to learn positions (LOG.md).
  position_stddev=0.5,
  relative_stddev=8.0,
  # An eighth of the width, a sixth of the layers, a quarter of the heads.
  sizes={
    'b': dict(width=48, depth=2, heads=2, mlp_dim=192),
    'B': dict(width=96, depth=2, heads=3, mlp_dim=384),
    'L': dict(width=128, depth=4, heads=4, mlp_dim=512),
    'H': dict(width=160, depth=5, heads=4, mlp_dim=640),
  },
  depths={4: 1, 8: 2, 16: 3, 32: 4, 64: 5},
  patches={'32': 8, '16': 4, '14': 4},
  hybrid_blocks={'32': (2, 2), '16': (4,)},
  # With it, R50x1 has a sixth of ViT-B/32's operations, but takes as long on a
  # CPU, where narrow convolutions are slow; in the paper both have about the
  # same cost.
  resnet_width=0.125,
  resnet_depth=4,
  # Steps grow with the number of images that the paper's runs see.
  datasets={
    'imagenet2012': Dataset(200, 300, 73),
    'imagenet21k': Dataset(2_200, 90, 213),
    'jft300m': Dataset(48_000, 7, 400),
  },
  augment=RESIZE,
  tuning_steps=80,
)
# The part of the user's own training data that is held out, in percent.
HELD_OUT = 10
_OWN_HELD_OUT = f'shuffled(train)[{100 - HELD_OUT}%:]'


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
  return make(argument, MINI)


def make(argument, scale: Scale):
  """Returns the config of an argument at a scale."""
  args = config_lib.parse_argument(argument, scale.usage)
  config = config_lib.default()
  _set_model(config, models.paper_name(args['model']), scale)
  config.image_size = (scale.image_size, scale.image_size)
  config.data.batch_size = scale.batch_size
  config.data.preprocess = RESIZE
  config.log.tensorboard = False
  if args['dataset'] in scale.datasets:
    _set_pretraining(config, scale.datasets[args['dataset']], args, scale)
  elif args['dataset'] in TASKS:
    for option in args.keys() - {'model', 'dataset', 'of'}:
      raise ValueError(f'{option}= is for pre-training. {scale.usage}')
    _set_transfer(config, scale, *_task(args['dataset'], args.get('of', '')))
  else:
    raise ValueError(
      f'{args["dataset"]!r} is not one of its data sets. {scale.usage}'
    )
  config.checkpoint.every = config.total_steps
  # The last line is about the end alone, as `overfitting` needs it.
  config.log.every = max(1, config.total_steps // 10)
  return config


def _task(name, own):
  """Returns a task's data spec, training split and test split."""
  return (
    (own, _OWN_HELD_OUT, 'test') if own and name == 'imagenet' else TASKS[name]
  )


def _set_model(config, name, scale):
  model = config.model
  model.name = name
  if name.startswith(('BiT-', 'AxialResNet')):
    full = models.build(name, num_classes=1)
    model.blocks = tuple(
      max(1, round(n / scale.resnet_depth)) for n in full.blocks
    )
    model.width_factor = scale.resnet_width * full.width_factor
    if name.startswith('Axial'):
      model.heads = 2  # Each has 8 channels.
    return
  size, _, patch = name.rpartition('ViT-')[2].partition('/')
  patches = scale.hybrid_blocks if '+' in name else scale.patches
  if size not in scale.sizes or patch not in patches or name[0] not in 'VRA':
    raise ValueError(
      f'{name!r} has no miniature: sizes are {", ".join(scale.sizes)},'
      f' patches {", ".join(patches)}. {scale.usage}'
    )
  model.update(scale.sizes[size])
  model.position_stddev = scale.position_stddev
  if '+' in name:
    model.resnet_blocks = scale.hybrid_blocks[patch]
    model.resnet_width = scale.resnet_width
  else:
    model.patch_size = (scale.patches[patch], scale.patches[patch])
  model.dropout_rate = 0.0


def _set_pretraining(config, dataset, args, scale):
  _set_data(config, dataset, args, scale)
  epochs = args.get('epochs', dataset.epochs)
  config.total_steps = round(dataset.steps * epochs / dataset.epochs)
  most = max(config.total_steps, 1)
  often = args.get('evals', min(5, most))
  if not 1 <= often <= most:
    raise ValueError(
      f'evals={often}, expected 1 to {most}, the steps. {scale.usage}'
    )
  every = config.total_steps // often
  warmup = dict(warmup_steps=config.total_steps // 10)
  kind = 'classification'
  if args.get('objective') == 'masked_patch':
    # As in configs/masked_patch.py.
    kind = 'masked_patch'
    config.loss = config_lib.masked_patch()
    config.optimizer = config_lib.optimizer('adamw', weight_decay=0.0)
    config.schedule = config_lib.schedule(
      'cosine', peak=scale.rate(2e-4), **warmup
    )
    config.model.head_bias = 0.0
    config.model.dropout_rate = None
  elif args.get('optimizer') == 'sgd':
    config.optimizer = config_lib.optimizer(
      'sgd', momentum=0.9, weight_decay=1e-4
    )
    config.schedule = config_lib.schedule(
      'staircase',
      peak=0.1,
      boundaries=pretrain.SGD_BOUNDARIES,
      factor=0.1,
      **warmup,
    )
  else:
    papers = pretrain.JFT.peak.get(config.model.name, pretrain.JFT.others)
    config.optimizer = config_lib.optimizer(
      'adamw', weight_decay=scale.weight_decay
    )
    config.schedule = config_lib.schedule(
      'linear', peak=scale.rate(papers), **warmup
    )
  config.evals.validation = config_lib.evaluation(
    _OWN_HELD_OUT if 'of' in args else 'train[49000:]',
    kind,
    preprocess=RESIZE,
    every=every,
  )
  # Accuracy saturates with six labels per image.
  config.checkpoint.best = 'validation/loss'
  several = args.get('few_shot') == 'average'
  for name in FEW_SHOT if several else FEW_SHOT[:1]:
    task = _task(name, args.get('of', ''))
    if name == 'imagenet':
      config.evals.few_shot = _few_shot(*task, every)
    else:
      # The average needs only the end of a run, so these have no curve.
      config.evals[f'few_shot_{name}'] = _few_shot(*task, 0)


def _set_data(config, dataset, args, scale):
  """Sets the training data: a part of the scenes, or of the user's own data."""
  config.loss = config_lib.sigmoid()
  if 'of' in args:
    whole = scale.datasets['jft300m'].scenes
    images = args.get('subset', dataset.scenes)
    percent = f'{(100 - HELD_OUT) * images / whole:.3f}'.rstrip('0').rstrip('.')
    config.data.dataset = args['of']
    config.data.train_split = f'shuffled(train)[:{percent}%]'
    config.data.preprocess = scale.augment
    return
  config.model.head_bias = -1.4  # The log-odds of 6 labels out of 31.
  config.data.dataset = 'shapes:all'
  config.data.max_labels = 6
  config.data.train_split = f'train[:{dataset.scenes}]'
  if 'subset' in args:
    config.data.train_split = (
      f'shuffled({config.data.train_split})[:{args["subset"]}]'
    )


def _few_shot(spec, train, test, every):
  """Returns a five-shot evaluation on a task's data."""
  if spec.startswith('shapes:'):
    train = 'validation'  # The whole split, as there are up to 72 classes.
  elif spec != 'digits':
    train = 'train'  # The user's own data: a part may lack classes.
  return config_lib.evaluation(
    test,
    'few_shot',
    train_split=train,
    dataset=spec,
    preprocess=_resize(spec),
    shots=(5,),
    every=every,
  )


def _resize(spec):
  return 'resize' if spec == 'digits' else RESIZE


def _set_transfer(config, scale, spec, train, test):
  config.data.dataset = spec
  config.data.preprocess = _resize(spec)
  config.data.train_split = train
  config.total_steps = scale.tuning_steps
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0)
  config.schedule = config_lib.schedule(
    'cosine', peak=0.03, warmup_steps=scale.tuning_steps // 10
  )
  config.evals.test = config_lib.evaluation(
    test, preprocess=config.data.preprocess
  )
