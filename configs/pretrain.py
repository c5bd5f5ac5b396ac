"""Pre-training: every row of the paper's Table 3 (arXiv:2010.11929, B.1).

    python -m vit_jax.main --workdir=DIR \\
        --config=configs/pretrain.py:MODEL,DATASET[,epochs=N][,OPTION=VALUE]

MODEL is a model's name, such as `ViT-B/16`. DATASET is `imagenet2012`,
`imagenet21k`, `jft300m`, or any data spec (`folder:/data/pets`, `digits`), see
below. `imagenet21k,data=arrayrecord:/data/tfds/i21k` names a copy of a data set
that is not public; the classes and the images are then counted there, and a
random 51,200 of them are held out. `image_size=64` replaces 224 px.
`optimizer=sgd` is for ResNets (Table 7). On ImageNet alone, BiT's ResNets have
BiT's own recipe, SGD for 90 epochs; `optimizer=adam` gives them the ViTs' row.
`few_shot=imagenet2012`, or any data spec with splits train and test, measures
few-shot accuracy during the run (Figure 4); `few_shot=average` measures it on
all of `FEW_SHOT` (Figure 8).
`subset=9000000`, `subset=3%` or `subset=0.03` trains on that many random
examples of the training data (`train=SPLIT`); larger subsets contain smaller
ones. `exclude=FILE` leaves near-duplicates of test images out, and `clean=FILE`
adds NAME_clean, the evaluation without test images that have duplicates, see
docs/dedup.md.

All runs have batch 4096, 224 px, Adam and 10,000 steps of warm-up.

Cost and result, from the paper: ViT-L/16 on JFT for 14 epochs takes 680
TPUv3-core-days and reaches 87.12% on ImageNet after fine-tuning at 384 px;
ViT-B/16 on ImageNet alone, 300 epochs, 77.91%.

Data of your own get ImageNet's row, adapted to their size: as batch about a
256th of the examples (16 to 4096), which is ImageNet's proportion, a rate that
falls with the square root of the batch (2.7e-4 at 32), a tenth of the run as
warm-up, softmax without a hidden layer, ten evaluations, and a checkpoint every
ten minutes. With `epochs=` below 30 there is no dropout, and crops are at least
half of the image: a model does not memorise images that it sees so rarely. They
are evaluated on the split called test, validation or val, or else on a random
tenth of train, which is held out; `eval=SPLIT` names another split. The
metrics' names say which split was used (`test/accuracy`, `held_out/accuracy`).

RandAugment, random erasing and colour jitter (`--config.data.preprocess`),
mixup and CutMix (`mixup_alpha`, `cutmix_alpha`) and stochastic depth
(`model.stochastic_depth`) are off, as in the paper; configs/recipes/ has later
recipes, which use them.

Figure 4 is `subset=9000000`, `30000000`, `90000000` and `100%` of `jft300m`
with `few_shot=imagenet2012`: the same hyper-parameters, no extra
regularisation, and early stopping. WORKDIR/best has the weights with the best
validation accuracy, and `results.best_row(WORKDIR, 'validation/accuracy')`
returns their measurements. The paper does not say how long it trained on
subsets. Here epochs count all examples, so that each run has as many steps as
the run on all of them (`--config.data.examples_per_epoch=0` counts only those
of the subset).
"""

import dataclasses
import decimal
import re

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import exclusion, splits

USAGE = (
  'Usage: configs/pretrain.py:MODEL,DATASET[,epochs=300.0]'
  '[,optimizer=adam|sgd][,train=SPLIT][,eval=SPLIT][,few_shot=imagenet2012|average|SPEC]'
  '[,image_size=224][,subset=COUNT|PERCENT%|FRACTION][,data=SPEC]'
  '[,exclude=FILE][,clean=FILE], with DATASET one of imagenet2012, imagenet21k,'
  ' jft300m, or a data spec such as folder:/path.'
)


@dataclasses.dataclass(frozen=True)
class Row:
  """A data set's rows of Table 3.

  Attributes:
    epochs: the default; `epochs=` sets the table's other value.
    peak: base learning rate, by model name.
    others: base learning rate of models that are not in `peak`.
  """

  epochs: float
  decay: str
  weight_decay: float
  dropout_rate: float
  clip_norm: float
  peak: dict[str, float]
  others: float


JFT = Row(
  epochs=7,
  decay='linear',
  weight_decay=0.1,
  dropout_rate=0.0,
  clip_norm=0.0,
  peak={
    'ViT-B/16': 8e-4,
    'ViT-B/32': 8e-4,
    'ViT-L/32': 6e-4,
    'ViT-L/16': 4e-4,  # 7 or 14 epochs.
    'ViT-H/14': 3e-4,
    'BiT-R50x1': 1e-3,
    'AxialResNet50': 1e-3,  # Figure 13 compares it with R50x1.
    'BiT-R50x2': 1e-3,
    'BiT-R101x1': 8e-4,
    'BiT-R152x1': 6e-4,
    'BiT-R152x2': 6e-4,  # 7 epochs; also 14 in Table 6.
    # In Table 6, but not in Table 3; R152x2's rate is our choice.
    'BiT-R200x3': 6e-4,
    'R50+ViT-B/16': 8e-4,
    'R50+ViT-B/32': 8e-4,
    'R50+ViT-L/32': 2e-4,  # As printed; it differs from ViT-L/32's.
    'R50+ViT-L/16': 4e-4,  # 7 or 14 epochs.
  },
  # For models that the table leaves out, such as ViT-b/32 of Figure 4.
  others=8e-4,
)
# The paper trains these for 14 epochs only.
JFT_14_EPOCHS = ('ViT-H/14', 'BiT-R200x3')

# The paper pre-trains only ViTs on the next two sets; other models get the same
# rows.
IMAGENET21K = Row(
  # Table 3 prints 30/90 for L; all released checkpoints have 90.
  epochs=90,
  decay='linear',
  weight_decay=0.03,
  dropout_rate=0.1,
  clip_norm=0.0,
  peak={},
  # The rate in all rows; used for H/14, too, which is only in Table 5.
  others=1e-3,
)
IMAGENET = Row(
  epochs=300,
  decay='cosine',
  weight_decay=0.3,
  dropout_rate=0.1,
  clip_norm=1.0,
  peak={},
  others=3e-3,
)

# With these sizes the number of steps is known without the data. JFT's is the
# paper's 303M; ImageNet-21k's is the authors' number after de-duplication.
JFT_EXAMPLES, JFT_CLASSES = 303_000_000, 18_291
IMAGENET21K_EXAMPLES, IMAGENET21K_CLASSES = 12_400_000, 21_843

IMAGENET_EXAMPLES = 1_281_167
# Runs with fewer epochs on the user's own data are not regularised.
LONG_EPOCHS = 30
# Images that the released models' recipes hold out for validation.
HELD_OUT = 51_200
# Data sets with known rows and splits; all others are the user's own.
KNOWN = ('imagenet2012', 'imagenet21k', 'jft300m')

# Data spec, split of the shots and split of the test images, as in the authors'
# public code. The paper does not print which sets Figure 8 averages over; these
# are the public code's.
FEW_SHOT = {
  # The first 65,000 images have at least 30 of each class.
  'imagenet2012': ('tfds:imagenet2012', 'train[:65000]', 'validation'),
  'caltech101': ('tfds:caltech101', 'train', 'test'),
  'cars196': ('tfds:cars196:2.1.0', 'train', 'test'),
  'cifar100': ('tfds:cifar100', 'train', 'test'),
  'dtd': ('tfds:dtd', 'train', 'test'),
  'pets': ('tfds:oxford_iiit_pet', 'train', 'test'),
  'uc_merced': ('tfds:uc_merced', 'train[:1000]', 'train[1000:]'),
}

# The first BiT recipe (Table 7): rate 0.03 per 256 images of a batch, divided
# by 10 at boundaries, decay 1e-4, 5,000 steps of warm-up. The boundaries for 7
# epochs are not printed; these are the fractions of BiT-L's, which are after
# epochs 10, 23, 30 and 37 of 40.
SGD_PEAK = 0.03 * 4096 / 256
SGD_BOUNDARIES = (10 / 40, 23 / 40, 30 / 40, 37 / 40)
# BiT on ImageNet alone (BiT-S, arXiv:1912.11370): 90 epochs, the rate divided
# by 10 after 30, 60 and 80; softmax, as in its authors' public code. The ViT
# paper does not say how it trained the ResNets of Figure 3 on ImageNet.
BIT_IMAGENET_EPOCHS = 90
BIT_IMAGENET_BOUNDARIES = (30 / 90, 60 / 90, 80 / 90)


def get_config(argument=None):
  """Returns the config of `MODEL,DATASET[,OPTION=VALUE ...]`, see `USAGE`."""
  args = config_lib.parse_argument(argument, USAGE)
  model = models.paper_name(args['model'])
  dataset, excluded = exclusion.split(args['dataset'])
  row = {'jft300m': JFT, 'imagenet21k': IMAGENET21K}.get(dataset, IMAGENET)
  of_bit = model.startswith('BiT-') and dataset == 'imagenet2012'
  optimizer = args.get('optimizer', 'sgd' if of_bit else 'adam')
  of_bit &= optimizer == 'sgd'
  usual = BIT_IMAGENET_EPOCHS if of_bit else row.epochs
  if row is JFT and model in JFT_14_EPOCHS:
    usual = 14

  config = config_lib.default()
  _set_model(config, model, row)
  _set_recipe(config, model, row)
  if optimizer == 'sgd':
    _set_sgd(config, of_bit)
  if 'image_size' in args:
    config.image_size = (args['image_size'],) * 2
  # Splits the state into up to 32 parts, so that each device updates only its
  # own part (LOG.md).
  config.mesh.data, config.mesh.fsdp = -1, -1
  config.data.preprocess = 'inception_crop|flip'
  config.checkpoint.every = 5_000
  config.log.every = 50

  if 'subset' in args and dataset == 'imagenet2012':
    # Early stopping by `validation` would choose on the split that is reported.
    args = {'train': 'train[:99%]', 'eval': 'train[99%:]'} | args
  config.epochs = float(args.get('epochs', usual))
  _set_dataset(config, dataset, args.get('train'), args.get('eval'))
  if 'data' in args:
    _use_copy(config, dataset, args['data'])
  if (excluded or 'subset' in args) and config.data.num_examples:
    # An epoch counts all examples, so that the run has as many steps as one on
    # all of them.
    config.data.examples_per_epoch = config.data.num_examples
    config.data.num_examples = 0
  if excluded:
    _exclude(config, excluded)
  if 'subset' in args:
    _take_subset(config, args['subset'])
  if 'few_shot' in args:
    config.evals.update(_few_shots(args['few_shot']))
  if dataset not in KNOWN:
    _suit_own_data(config, optimizer)
  if 'clean' in args:
    config_lib.add_clean(config, args['clean'], USAGE)
  return config


def _set_model(config, model, row):
  """Sets the model with its pre-training head, and its dropout."""
  config.model.name = model
  if 'dropout_rate' in models.options(model):
    config.model.dropout_rate = row.dropout_rate
  if row.dropout_rate:
    # Dropout masks that do not depend on the mesh take far longer (LOG.md).
    config.dropout_rng = 'rbg'
  # The pre-training head has one hidden layer, as wide as the encoder; a
  # ResNet's head has none.
  if 'representation_size' in models.options(model):
    config.model.representation_size = -1
  # The bias starts at the log-odds of a rare class, so that the first steps are
  # not spent on learning them. The released ImageNet-21k recipe has -10.
  config.model.head_bias = -6.9 if row is IMAGENET else -10.0


def _set_recipe(config, model, row):
  """Sets loss, optimizer and schedule of a row of Table 3."""
  # The paper tuned smoothing for its small sets, but does not print the value;
  # its authors' public recipe for ImageNet has 1e-4.
  config.loss = config_lib.sigmoid(1e-4 if row is IMAGENET else 0.0)
  config.optimizer = config_lib.optimizer(
    'adamw', weight_decay=row.weight_decay, clip_norm=row.clip_norm
  )
  config.schedule = config_lib.schedule(
    row.decay, peak=row.peak.get(model, row.others), warmup_steps=10_000
  )
  if row is IMAGENET21K:
    config.schedule.end = 1e-5  # As in the released recipe.


def _set_sgd(config, of_bit):
  """Sets BiT's optimizer and schedule, and on ImageNet its loss."""
  config.optimizer = config_lib.optimizer(
    'sgd', momentum=0.9, weight_decay=1e-4
  )
  config.schedule = config_lib.schedule(
    'staircase',
    peak=SGD_PEAK,
    warmup_steps=5_000,
    boundaries=BIT_IMAGENET_BOUNDARIES if of_bit else SGD_BOUNDARIES,
    factor=0.1,
  )
  if of_bit:
    config.loss = config_lib.softmax()
    config.model.head_bias = 0.0


def _exclude(config, path):
  """Leaves the examples in a list out of all data of the training source."""
  if not config.data.dataset:
    raise ValueError(
      f'exclude={path} needs the location of the data: pass both as'
      f' --config.data.dataset=SPEC,exclude={path}. {USAGE}'
    )
  config.data.dataset = exclusion.join(config.data.dataset, path)


def _set_dataset(config, dataset, train, given):
  """Sets the data section and the evaluation."""
  split = given
  if dataset == 'jft300m':
    # Not public. The user gives its location by --config.data.dataset=SPEC
    # and, if they differ, its splits.
    config.num_classes = JFT_CLASSES
    config.data.max_labels = 16  # 1.26 on average.
    config.data.train_split = 'train[51200:]'
    config.data.examples_per_epoch = JFT_EXAMPLES
    split = split or 'train[:51200]'
  elif dataset == 'imagenet21k':
    # Not public as a TFDS builder either.
    config.num_classes = IMAGENET21K_CLASSES
    config.data.max_labels = 16
    config.data.train_split = 'full[51200:]'
    config.data.label_key = 'labels'
    config.data.examples_per_epoch = IMAGENET21K_EXAMPLES
    split = split or 'full[:51200]'
  elif dataset == 'imagenet2012':
    config.num_classes = 1000
    config.data.dataset = 'tfds:imagenet2012'
    sizes = {'train': IMAGENET_EXAMPLES}
    if splits.names(train or 'train') <= sizes.keys():
      config.data.num_examples = len(splits.resolve(train or 'train', sizes))
    split = split or 'validation'
  else:
    config.data.dataset = dataset
    split = split or config_lib.AUTO
  if train:
    config.data.train_split = train
  if split:
    # The user's own data may have any resolution; ImageNet's is known.
    own = config.data.dataset == dataset
    name = config_lib.name_of_split(given) if given else 'validation'
    if split == config_lib.AUTO:
      name = config_lib.AUTO
    elif not own and name != 'held_out':
      name = 'validation'  # The tables read this name, whatever the split.
    config.evals[name] = config_lib.evaluation(
      split,
      preprocess='resize'
      if own
      else "resize_small(256, method='area')|central_crop",
      every=5_000,
    )


def _use_copy(config, dataset, spec):
  """Reads a known data set from the user's copy, whatever its release."""
  if dataset not in KNOWN:
    raise ValueError(
      f'data={spec} is for {list(KNOWN)}; {dataset!r} names its data itself.'
      f' {USAGE}'
    )
  config.data.dataset = spec
  config.data.label_key = 'label'
  # 0: counted there.
  config.num_classes = config.data.num_examples = 0
  if dataset != 'imagenet2012':
    config.data.examples_per_epoch = 0
    config.data.train_split = f'shuffled(train)[{HELD_OUT}:]'
    for section in config.evals.values():
      if section.kind == 'classification':
        section.split = f'shuffled(train)[:{HELD_OUT}]'


def _suit_own_data(config, optimizer):
  """Replaces the settings that suit only a million images and more."""
  # 0 chooses by the number of examples; BiT's rate is for a batch of 256.
  config.data.batch_size = 0 if optimizer == 'adam' else 256
  # A tenth of the run, whose length is unknown here, at most 10,000 steps.
  config.schedule.warmup_steps = -1
  config.schedule.peak = -1.0 if optimizer == 'adam' else 0.03
  # Sigmoids are for labels that do not exclude each other, and learn slowly
  # from few labels.
  config.loss = config_lib.softmax()
  config.model.head_bias = None
  # As in AugReg, the head has no hidden layer.
  config.model.representation_size = None
  if config.epochs < LONG_EPOCHS:
    config.data.preprocess = 'inception_crop(min_area=0.5)|flip'
    if config.model.dropout_rate:
      config.model.dropout_rate = 0.0
  config.checkpoint.every_minutes = 10.0
  config.log.every = 10
  for section in config.evals.values():
    section.every = -1  # Every tenth of the run.


def _take_subset(config, subset):
  """Trains on a random part, and keeps the weights with the best validation."""
  whole = config.data.train_split
  if not config.evals or config_lib.AUTO in config.evals:
    raise ValueError(
      f'subset={subset} stops early, by the accuracy on held-out examples: name'
      ' them with eval=SPLIT, such as train=shuffled(train)[:98%],'
      'eval=shuffled(train)[98%:].'
      f' {USAGE}'
    )
  [(name, section)] = config.evals.items()
  if splits.may_overlap(whole, section.split):
    raise ValueError(
      f'subset={subset} of {whole!r} would be stopped early by'
      f' {section.split!r}, which may share examples with it; hold them out'
      ' with train=SPLIT and eval=SPLIT, such as train=shuffled(train)[:98%],'
      f'eval=shuffled(train)[98%:]. {USAGE}'
    )
  config.data.train_split = f'shuffled({whole})[:{_part(subset)}]'
  if not config.data.examples_per_epoch:
    config.data.examples_per_epoch = -1
  config.checkpoint.best = f'{name}/accuracy'


def _part(subset):
  """Returns the end of a slice: 9000000 as it is, 0.03 and 3% as 3%."""
  if re.fullmatch(r'[\d_]*[1-9][\d_]*', subset):
    return int(subset)
  found = re.fullmatch(r'(\d+(?:\.\d*)?|\.\d+)(%?)', subset)
  percent = 0
  if found and (found[2] or '.' in found[1]):
    percent = decimal.Decimal(found[1]) * (1 if found[2] else 100)
  if not 0 < percent <= 100:
    raise ValueError(
      f'subset={subset!r} must be a number of examples (9000000), or a part of'
      f' them above 0% and up to 100% (3% or 0.03). {USAGE}'
    )
  text = f'{percent:f}'
  return (text.rstrip('0').rstrip('.') if '.' in text else text) + '%'


def _few_shots(text):
  """Returns the evaluation `few_shot`, and further ones for `average`."""
  if text == 'average':
    return {
      'few_shot' if name == 'imagenet2012' else f'few_shot_{name}': section
      for name in FEW_SHOT
      for section in _few_shots(name).values()
    }
  spec, train, test = FEW_SHOT.get(text, (text, 'train', 'test'))
  section = config_lib.evaluation(
    test, 'few_shot', train_split=train, dataset=spec, every=5_000
  )
  if text in FEW_SHOT:
    section.preprocess = 'resize(256)|central_crop'
  return {'few_shot': section}
