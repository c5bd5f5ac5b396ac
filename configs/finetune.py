"""Fine-tuning: the paper's Table 4 (arXiv:2010.11929, B.1.1).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/finetune.py:MODEL,DATASET[,OPTION=VALUE ...] \\
        --config.init.checkpoint=PRETRAINED_WORKDIR

MODEL is the name of the pre-trained model, such as `ViT-B/16`; `auto` takes it
from the checkpoint. From a folder of transformers or timm (`hf://OWNER/NAME`),
`auto` also takes the image size and the preparation of images, unless
`resolution` or `preprocess` is given.

DATASET is `imagenet2012`, `cifar10`, `cifar100`, `pets`, `flowers`, or any data
spec with a split `train` (`folder:/data/birds`). SGD with momentum 0.9, batch
512, cosine decay, gradients clipped at norm 1, no weight decay.

`resolution=384` is the default. On ImageNet, a higher one (512 for L/16, 518
for H/14) also turns on Polyak averaging with 0.9999, as for Table 2.

Data of your own get settings that suit their size: `epochs=20`, as batch about
an eighth of the examples (16 to 512), a rate that falls with the square root of
the batch (0.03 at 512), a tenth of the run as warm-up, ten evaluations, and a
checkpoint every ten minutes. They are evaluated on `eval=SPLIT`. Without that
option, the split called test, validation or val is used, or else a random tenth
of train, which is held out.

`train=all`, the default, trains on the whole training set and evaluates on the
test set.
`train=selection` holds a part of the training set out and evaluates on it, to
choose a learning rate (--config.schedule.peak=0.01) from 0.001, 0.003, 0.01 and
0.03, or for ImageNet from 0.003, 0.01, 0.03 and 0.06.

`tune=head` trains the head alone (a linear probe), at 224 px. `tune=lora`
trains the head and low-rank additions of rank 8 to the attention kernels. Both
use Adam with rate 0.001: Table 4's rates are for training everything. The
features of a ResNet can be probed, but LoRA is for Transformers.

`real=true` also reports the ImageNet model on ImageNet-ReaL, as `real/accuracy`
after the last step (Tables 2, 5 and 6). It needs tfds:imagenet2012_real.

`exclude=FILE` leaves the examples in a list out of the data. `clean=FILE` adds
`test_clean`, which is `test` without the images in a list: those that have
near-duplicates in the training or pre-training data, see docs/dedup.md.

`setup=bit` is BiT's own setup in place of Table 4's. The paper fine-tunes its
ResNets with both and keeps the better result. BiT's has rate 0.003, divided by
10 after 30, 60 and 90% of the steps, no clipping, mixup 0.1 on ImageNet and
CIFAR, and 128 px on CIFAR. `preprocess=inception`, `crop` or `crop_small`
changes how images are cropped, see `PREPROCESSING`.

From the ImageNet-21k checkpoint of the paper's authors, ViT-B/16 reaches 84.5%
on ImageNet and 99.0% on CIFAR-10 with the defaults: Inception crops, images
resized to a square for the test, and a rate of 0.03 (0.01 on CIFAR-10).
"""

import dataclasses

from ml_collections import config_dict

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import exclusion
from vit_jax.training import warm_start

# Preprocessing for training and for evaluation; for images of 384 px, `larger`
# is 448 px.
PREPROCESSING = {
  # From the released fine-tuning code.
  'inception': ('inception_crop|flip', 'resize'),
  # BiT's HyperRule (arXiv:1912.11370), which the paper says it follows.
  'crop': ('resize({larger})|random_crop|flip', 'resize'),
  # The same, but with the aspect ratio kept; from the later transfer configs of
  # the paper's authors (big_vision), for CIFAR.
  'crop_small': (
    "resize_small({larger}, method='area')|random_crop|flip",
    "resize_small({larger}, method='area')|central_crop",
  ),
}
# On data of one's own. Table 4 has 8 epochs on ImageNet and 70 on Pets.
OWN_EPOCHS = 20
# ImageNet-ReaL (Beyer et al., 2020): the validation images with new labels. Any
# label of an image counts as right; images without labels do not count.
REAL = dict(
  dataset='tfds:imagenet2012_real',
  split='validation',
  label_key='real_label',
  # The evaluation stops with an error if an image has more labels.
  max_labels=32,
)
USAGE = (
  'Usage: configs/finetune.py:MODEL,DATASET[,resolution=384][,epochs=20.0]'
  '[,train=all|selection][,eval=SPLIT][,setup=table4|bit]'
  '[,tune=all|head|lora]'
  '[,preprocess=inception|crop|crop_small][,real=false|true]'
  '[,exclude=FILE][,clean=FILE], with DATASET one of'
  ' imagenet2012, cifar10, cifar100, pets, flowers, or a data spec such as'
  ' folder:/path; real=true is for imagenet2012 with train=all, epochs=N for'
  ' data of your own.'
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of Table 4.

  Attributes:
    spec: the data set's spec.
    steps: training steps; BiT's setup has the same number.
    warmup_steps: not in the paper; from the reference implementations.
    learning_rates: the grid to choose from on the held-out part.
    held_out: percentage of the training set to hold out.
    test: the split to report.
    peak: the learning rate of the released runs, which is in the grid.
    mixup: whether BiT uses mixup, as it does for 20,000 images or more.
    tiny: whether images have fewer than 96 x 96 px; BiT enlarges these less.
  """

  spec: str
  steps: int
  warmup_steps: int
  learning_rates: tuple[float, ...]
  held_out: int
  test: str = 'test'
  peak: float = 0.03
  mixup: bool = False
  tiny: bool = False

  def resolution(self, setup: str) -> int:
    """Returns the default height and width in pixels."""
    return 128 if self.tiny and setup == 'bit' else 384

  def larger(self, setup: str) -> float:
    """Returns the factor by which images are larger than their crops."""
    return 160 / 128 if self.tiny and setup == 'bit' else 448 / 384


_GRID = (0.001, 0.003, 0.01, 0.03)
_CIFAR = dict(mixup=True, tiny=True)
TABLE_4 = {
  'imagenet2012': Row(
    'tfds:imagenet2012',
    steps=20_000,
    warmup_steps=500,
    # As printed in the table; the text adds 0.06 for ResNets and hybrids only.
    learning_rates=(0.003, 0.01, 0.03, 0.06),
    held_out=1,
    test='validation',
    mixup=True,
  ),
  'cifar100': Row('tfds:cifar100', 10_000, 500, _GRID, 2, **_CIFAR),
  'cifar10': Row('tfds:cifar10', 10_000, 500, _GRID, 2, peak=0.01, **_CIFAR),
  'pets': Row('tfds:oxford_iiit_pet', 500, 100, _GRID, 10),
  'flowers': Row('tfds:oxford_flowers102', 500, 100, _GRID, 10),
}


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET[,OPTION=VALUE ...]`, see `USAGE`."""
  args = _parse(argument)
  dataset, setup, tune = args['dataset'], args['setup'], args['tune']
  own = dataset not in TABLE_4
  # Steps and warm-up of the user's own data follow from their size.
  row = TABLE_4.get(dataset, Row(dataset, 0, -1, _GRID, 10))
  # A frozen backbone cannot get used to another resolution.
  usual = 224 if tune == 'head' else row.resolution(setup)
  resolution = args.get('resolution', usual)

  config = base(args['model'], resolution, row.steps)
  name = config.model.name
  if name != config_lib.AUTO and 'dropout_rate' in models.options(name):
    config.model.dropout_rate = warm_start.dropout_rate(name)
  if setup == 'bit':
    _set_bit(config, row)
  else:
    config.schedule = config_lib.schedule(
      'cosine', peak=row.peak, warmup_steps=row.warmup_steps
    )
  if tune != 'all':
    _train_less(config, tune)
  if dataset == 'imagenet2012' and resolution > 384:
    # The start of averaging is not known. From step 0 on, the first weights,
    # with a head of zeros, would make up 13% of the average of 20,000 steps.
    config.polyak.decay = 0.9999
    config.polyak.start_step = row.steps // 10
  # Dropout masks that do not depend on the mesh would take far longer: also set
  # `rbg` if you turn on dropout for another model.
  if config.model.dropout_rate:
    config.dropout_rng = 'rbg'

  _set_data(config, args, row, resolution)
  config.checkpoint.every = max(row.steps // 10, 100)
  if own:
    _suit_own_data(config, args.get('epochs', OWN_EPOCHS))
  if 'clean' in args:
    config_lib.add_clean(config, args['clean'], USAGE)
  return config


def _parse(argument):
  """Returns the values of the argument; those that do not fit are refused."""
  args = dict(setup='table4', tune='all', train='all', real='false')
  args |= config_lib.parse_argument(argument, USAGE)
  args['dataset'], args['excluded'] = exclusion.split(args['dataset'])
  dataset, part, tune = args['dataset'], args['train'], args['tune']
  known = TABLE_4.get(dataset)
  wrong = ''
  if part == 'selection' and 'eval' in args:
    wrong = (
      f'eval={args["eval"]} is for train=all: train=selection is evaluated on'
      ' the part that it holds out of train.'
    )
  elif known and 'eval' in args:
    wrong = (
      f'eval={args["eval"]} is for data of your own: {dataset} is tested on'
      f' {known.test!r}.'
    )
  elif args['real'] == 'true' and (dataset, part) != ('imagenet2012', 'all'):
    wrong = (
      'real=true is a second test of models fine-tuned on imagenet2012 with'
      f' train=all, not on {dataset} with train={part}; leave it out.'
    )
  elif known and 'epochs' in args:
    wrong = (
      f'epochs={args["epochs"]:g} is for data of your own: Table 4 has'
      f' {known.steps:,} steps for {dataset}.'
    )
  elif tune != 'all' and args['setup'] != 'table4':
    wrong = (
      f'tune={tune} has an optimizer and rate of its own: leave out'
      f' setup={args["setup"]}.'
    )
  if wrong:
    raise ValueError(f'{wrong} {USAGE}')
  return args


def base(model, resolution, steps):
  """Returns the settings that Table 4's and VTAB's fine-tuning share.

  Args:
    model: the name of a model, or `auto`.
    resolution: height and width in pixels.
    steps: of the run.
  """
  config = config_lib.default()
  config.model.name = models.paper_name(model)
  # The user must name the weights to start from: '' would train from scratch.
  config.init.checkpoint = config_dict.placeholder(str)
  config.image_size = (resolution, resolution)
  config.total_steps = steps
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0)
  config.data.batch_size = 512
  # Splits the state into up to 32 parts.
  config.mesh.data, config.mesh.fsdp = -1, -1
  config.log.every = 50
  return config


def _set_data(config, args, row, resolution):
  """Sets the training data, their preprocessing, and the evaluations."""
  setup = args['setup']
  # Differs from the paper, which follows BiT: the default is that of its
  # authors' public fine-tuning code, unless the whole setup is BiT's.
  chosen = args.get('preprocess', 'crop' if setup == 'bit' else 'inception')
  larger = round(resolution * row.larger(setup))
  config.data.preprocess, preprocess = (
    text.format(larger=larger) for text in PREPROCESSING[chosen]
  )
  if (
    config.model.name == config_lib.AUTO
    and not {*('resolution', 'preprocess')} & args.keys()
  ):
    config.init.preprocess = config_lib.AUTO
  config.data.dataset = exclusion.join(row.spec, args['excluded'])
  if args['train'] == 'selection':
    # Files in class folders are sorted by class, so a slice needs a shuffle.
    located = config_lib.is_located(row.spec)
    train = 'shuffled(train)' if located else 'train'
    kept = 100 - row.held_out
    config.data.train_split = f'{train}[:{kept}%]'
    name, split = 'held_out', f'{train}[{kept}%:]'
  elif args['dataset'] in TABLE_4:
    name, split = 'test', row.test
  else:
    name = split = args.get('eval', config_lib.AUTO)
    if split != config_lib.AUTO:
      name = config_lib.name_of_split(split)
  config.evals[name] = config_lib.evaluation(
    split, preprocess=preprocess, every=row.steps // 5
  )
  if args['real'] == 'true':
    config.evals.real = config_lib.evaluation('', preprocess=preprocess)
    config.evals.real.update(REAL)


def _set_bit(config, row):
  """Sets BiT's HyperRule (arXiv:1912.11370, 3.3) except for preprocessing."""
  config.optimizer = config_lib.optimizer('sgd', momentum=0.9)
  # For the 500 steps of small data sets, BiT's public code has boundaries at
  # 40, 60 and 80% instead.
  config.schedule = config_lib.schedule(
    'staircase',
    peak=0.003,
    warmup_steps=row.warmup_steps,
    boundaries=(0.3, 0.6, 0.9),
    factor=0.1,
  )
  if row.mixup:
    config.mixup_alpha = 0.1


def _train_less(config, tune):
  """Trains the head alone, or the head and low-rank additions."""
  config.optimizer = config_lib.optimizer(
    'adamw', weight_decay=0.0, clip_norm=1.0
  )
  config.schedule.peak = 1e-3
  if tune == 'lora':
    config.lora.rank = 8
    config.lora.targets = ('query', 'key', 'value', 'out')
    return
  config.tuning.train = 'head'
  if config.model.dropout_rate:
    config.model.dropout_rate = 0.0


def _suit_own_data(config, epochs):
  """Replaces the settings that suit only sets of known sizes."""
  config.total_steps = None
  config.epochs = float(epochs)
  config.data.batch_size = 0  # By the number of examples.
  if config.optimizer.name == 'sgd' and config.schedule.name == 'cosine':
    config.schedule.peak = -1.0  # By the batch size.
  config.checkpoint.every, config.checkpoint.every_minutes = 5_000, 10.0
  config.log.every = 10
  for section in config.evals.values():
    section.every = -1  # Every tenth of the run.
