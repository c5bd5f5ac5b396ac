"""What is known of a run without compiling it."""

import dataclasses
import math

import jax
import ml_collections
import numpy as np

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.config import inputs

# Classes of data sets that a plan does without: (classes, training images).
KNOWN_DATASETS = {
  'tfds:imagenet2012': (1000, 1_281_167),
  'tfds:cifar10': (10, 50_000),
  'tfds:cifar100': (100, 50_000),
  'tfds:oxford_iiit_pet': (37, 3_680),
  'tfds:oxford_flowers102': (102, 1_020),
}

# Table 2 of arXiv:2010.11929, in TPUv3-core-days, by model and classes, with
# the exaFLOPs of the run: of 14 epochs of JFT-300M, Table 6's. The epochs of
# ImageNet-21k are not printed: 230 core-days are a plausible speed for 90, and
# a third of it for 30.
PAPER_RUNS = {
  ('ViT-H/14', 18_291): (4262, 2500),
  ('ViT-L/16', 18_291): (1567, 680),
  ('ViT-L/16', 21_843): (412, 230),
}
# All at this batch; exaFLOPs to this part of them. Another image size, another
# pooling or another number of epochs is another run.
_PAPER_BATCH = 4096
_PAPER_TOLERANCE = 0.002


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A run in numbers that depend on no device.

  Attributes:
    model: its name.
    params: number of parameters.
    forward_macs: of one image.
    activation_bytes: of one image, kept for the backward pass by JAX; the
      compiler may keep less.
    tokens: of one image in the Transformer; None in a ResNet.
    image_size: (height, width).
    batch_size: images a step.
    total_steps: of the run.
    epochs: passes over the training set; None if its size is not known.
    paper_core_days: what the paper spent, if this is a run of its Table 2.
  """

  model: str
  params: int
  forward_macs: int
  activation_bytes: int
  tokens: int | None
  image_size: tuple[int, int]
  batch_size: int
  total_steps: int
  epochs: float | None
  paper_core_days: float | None

  @property
  def total_exaflops(self) -> float:
    """Of the run; the forward pass is a third, see `accounting.exaflops`."""
    return accounting.exaflops(
      self.forward_macs, self.batch_size, self.total_steps
    )

  @property
  def step_flops(self) -> float:
    """Operations of one step, elementwise ones and recomputing left out."""
    return 2 * 3 * self.forward_macs * self.batch_size


def resolve(
  config: ml_collections.ConfigDict, platform: str
) -> ml_collections.ConfigDict:
  """Resolves a config for a platform, without its data as far as possible.

  The data are opened only where the config leaves the classes or the length
  of an epoch to them.

  Args:
    config: as given; not changed.
    platform: 'tpu', 'gpu' or 'cpu'.

  Raises:
    ValueError: a wrong config, or a fact that neither it nor the data tell.
  """
  config_lib.validate(config, complete=False)
  if config.model.name == config_lib.AUTO:
    raise ValueError(
      f'model.name={config.model.name!r} is known from the weights only, which'
      ' a plan does not read: name the model.'
    )
  classes, examples = KNOWN_DATASETS.get(config.data.dataset, (0, 0))
  classes = config.num_classes or classes
  if config.data.num_examples or config.data.train_split != 'train':
    examples = config.data.num_examples
  # An epoch's length matters only where the run is as many epochs.
  an_epoch, whole = config.data.examples_per_epoch or 0, 0
  # -1: it is that of the whole which the run's examples are a part of.
  enough = an_epoch > 0 or (examples and not an_epoch) or config.total_steps
  # So does the batch, if the run leaves it to the number of examples.
  sized = config.data.batch_size or examples or an_epoch > 0
  if not (classes and enough and sized):
    classes, examples, whole = _from_data(config)
  return config_lib.resolve(
    config,
    num_examples=examples or max(an_epoch, 0),
    num_classes=classes,
    whole=whole,
    platform=platform,
  )


def _from_data(config: ml_collections.ConfigDict) -> tuple[int, int, int]:
  """Classes, examples trained on, and what those are a part of."""
  needed = 'Set num_classes, and data.num_examples or total_steps.'
  if config.data.examples_per_epoch == -1:
    needed = 'Set num_classes, and data.examples_per_epoch or total_steps.'
  if not config.data.dataset:
    raise ValueError(
      'The config names no data set, and not its classes or its size either.'
      f' {needed}'
    )
  if not config.data.batch_size:
    needed += ' And data.batch_size.'
  try:
    source = inputs.open_source(config, config.data.dataset)
    config = inputs.settle(config, source)
    view = inputs.data.View(source, config.data.train_split)
  except Exception as error:
    raise ValueError(
      f'The classes or the size of {config.data.dataset} are not in the'
      f' config, and it can not be read here: {error} {needed}'
    ) from error
  return source.info.num_classes, len(view), view.selection.whole


def analyse(config: ml_collections.ConfigDict) -> Analysis:
  """Counts what a resolved config computes."""
  counted = account(config)
  model = _model(config)
  an_epoch = config.data.examples_per_epoch or config.data.num_examples
  images = config.total_steps * config.data.batch_size
  epochs = images / an_epoch if an_epoch else None
  return Analysis(
    model=config.model.name,
    params=counted.params,
    forward_macs=counted.macs,
    activation_bytes=counted.activation_bytes,
    tokens=_tokens(model, config),
    image_size=tuple(config.image_size),
    batch_size=config.data.batch_size,
    total_steps=config.total_steps,
    epochs=epochs,
    paper_core_days=_paper_core_days(
      config,
      accounting.exaflops(
        counted.macs, config.data.batch_size, config.total_steps
      ),
    ),
  )


def account(config: ml_collections.ConfigDict) -> accounting.Account:
  """The account of a resolved config's model."""
  key = (
    config.model.to_json_best_effort(),
    config.num_classes,
    tuple(config.image_size),
    config.channels,
  )
  if key not in _ACCOUNTS:
    # Blocks in a loop are traced once, and cost the same; a fast attention
    # computes what the plain one does.
    plain = {'scan': True, 'attention_implementation': 'plain'}
    options = models.options(config.model.name)
    model = _model(config, **{k: v for k, v in plain.items() if k in options})
    _ACCOUNTS[key] = accounting.account(
      model, tuple(config.image_size), config.channels
    )
  return _ACCOUNTS[key]


_ACCOUNTS: dict[tuple, accounting.Account] = {}


def _model(config: ml_collections.ConfigDict, **others):
  section = config.model.to_dict() | others
  return models.build(
    section.pop('name'), num_classes=config.num_classes, **section
  )


def _tokens(model, config: ml_collections.ConfigDict) -> int | None:
  grid = model.token_grid(tuple(config.image_size))
  if grid is None:
    return None
  return math.prod(grid) + (getattr(model, 'pooling', '') == 'token')


def _paper_core_days(
  config: ml_collections.ConfigDict, exaflops: float
) -> float | None:
  key = (config.model.name, config.num_classes)
  expected, core_days = PAPER_RUNS.get(key, (0, None))
  same = abs(exaflops - expected) <= _PAPER_TOLERANCE * expected
  batch = config.data.batch_size == _PAPER_BATCH
  # Fine-tuning has no hidden layer before the head.
  pretraining = config.model.representation_size is not None
  return core_days if same and batch and pretraining else None


def bytes_held(tree) -> int:
  """Bytes that a tree of arrays (or shapes) with shardings takes per device."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape))
    * np.dtype(leaf.dtype).itemsize
    for leaf in jax.tree.leaves(tree)
  )
