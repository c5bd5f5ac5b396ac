"""Finds what is known about a run without compiling it."""

import dataclasses
import functools
import math

import jax
import ml_collections
import numpy as np

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.models import lora, position
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import program as program_lib

# Data sets that a plan need not open: (classes, training images).
KNOWN_DATASETS = {
  'tfds:imagenet2012': (1000, 1_281_167),
  'tfds:cifar10': (10, 50_000),
  'tfds:cifar100': (100, 50_000),
  'tfds:oxford_iiit_pet': (37, 3_680),
  'tfds:oxford_flowers102': (102, 1_020),
}

# Slowest and fastest real run on TPUs, over the compiler's estimate.
REAL_SPEED = (0.59, 1.05)
RESTS_ON = (
  "Core-days are the TPU compiler's estimate. Real speed was"
  f' {REAL_SPEED[1]:g} times the estimate for ViT-S/16 on eight cores of v3,'
  f' and {REAL_SPEED[0]:g} to 0.87 times for the three runs whose core-days the'
  ' paper prints. No other real run is known, so the estimate is no independent'
  " check of the paper's core-days."
)
# (model, classes) -> (exaFLOPs, TPUv3-core-days) of the paper's runs
# (arXiv:2010.11929). The core-days are Table 2's. The exaFLOPs for JFT-300M are
# Table 6's at 14 epochs. The paper does not print the epochs for ImageNet-21k:
# with 90, 230 core-days give a plausible speed; with 30, only a third of it.
PAPER_RUNS = {
  ('ViT-H/14', 18_291): (4262, 2500),
  ('ViT-L/16', 18_291): (1567, 680),
  ('ViT-L/16', 21_843): (412, 230),
}
# A run is the paper's if it has this batch size and, up to this relative
# tolerance, these exaFLOPs. Other image sizes, poolings or epochs exceed it.
_PAPER_BATCH = 4096
_PAPER_TOLERANCE = 0.002


@dataclasses.dataclass(frozen=True)
class Tuned:
  """What a run that trains less of its model saves; see `training/tuning.py`.

  Attributes:
    trained: number of parameters that train, low-rank additions included.
    optimizer_bytes: the optimizer's state, of the whole run.
    optimizer_bytes_of_all: the same if all parameters trained.
    changed: the model's parameters that the gradient passes through: those that
      train, and kernels with additions.
  """

  trained: int
  optimizer_bytes: int
  optimizer_bytes_of_all: int
  changed: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Analysis:
  """The figures of a run that depend on no device.

  Attributes:
    model: name of the model.
    params: number of parameters.
    forward_macs: multiply-accumulates of the forward pass of one image.
    backward_macs: those of its backward pass.
    activation_bytes: bytes that JAX keeps of one image for the backward pass;
      the compiler may keep less.
    tokens: tokens of one image in the Transformer; None in a ResNet.
    image_size: (height, width).
    batch_size: images a step.
    total_steps: steps of the run.
    epochs: passes over the training set; None if its size is unknown.
    paper_core_days: what the paper spent, if this is a run of its Table 2.
    tuned: what is saved if only a part of the model trains; None otherwise.
  """

  model: str
  params: int
  forward_macs: int
  backward_macs: int
  activation_bytes: int
  tokens: int | None
  image_size: tuple[int, int]
  batch_size: int
  total_steps: int
  epochs: float | None
  paper_core_days: float | None
  tuned: Tuned | None = None

  @property
  def total_exaflops(self) -> float:
    """The run's exaFLOPs; the forward pass is a third, see `accounting`.

    It is more than a third if less than the whole model trains.
    """
    return self.step_flops * self.total_steps / 1e18

  @property
  def step_flops(self) -> float:
    """Operations of one step, without elementwise ones and recomputing."""
    return 2 * (self.forward_macs + self.backward_macs) * self.batch_size


def resolve(
  config: ml_collections.ConfigDict, platform: str
) -> ml_collections.ConfigDict:
  """Completes a config for a platform, without opening its data if possible.

  The data are opened only if the config does not say the number of classes or
  the length of an epoch.

  Args:
    config: the config as given; not changed.
    platform: 'tpu', 'gpu' or 'cpu'.

  Raises:
    ValueError: the config is wrong, or neither it nor the data say the number
      of classes or of examples.
  """
  config_lib.validate(config, located=False)
  if config.model.name == config_lib.AUTO:
    raise ValueError(
      f'model.name={config.model.name!r} is known only from the weights, which'
      ' a plan does not read. Set model.name to the name of a model.'
    )
  classes, examples = KNOWN_DATASETS.get(config.data.dataset, (0, 0))
  classes = config.num_classes or classes
  if config.data.num_examples or config.data.train_split != 'train':
    examples = config.data.num_examples
  # The length of an epoch matters only if the run's length is in epochs. The
  # value -1 means the whole split, a part of which the run trains on.
  an_epoch, whole = config.data.examples_per_epoch or 0, 0
  has_length = an_epoch > 0 or (examples and not an_epoch) or config.total_steps
  # Without a batch size, the batch follows from the number of examples.
  has_batch = config.data.batch_size or examples or an_epoch > 0
  if not (classes and has_length and has_batch):
    classes, examples, whole = _from_data(config)
  return config_lib.resolve(
    config,
    num_examples=examples or max(an_epoch, 0),
    num_classes=classes,
    whole=whole,
    platform=platform,
  )


def _from_data(config: ml_collections.ConfigDict) -> tuple[int, int, int]:
  """Returns the numbers of classes, of training examples, and of the whole."""
  needed = 'Set num_classes, and data.num_examples or total_steps.'
  if config.data.examples_per_epoch == -1:
    needed = 'Set num_classes, and data.examples_per_epoch or total_steps.'
  if not config.data.dataset:
    raise ValueError(
      f'The config says neither the data set nor its classes and size. {needed}'
    )
  if not config.data.batch_size:
    needed += ' Also set data.batch_size.'
  try:
    source = inputs.open_source(config, config.data.dataset)
    config = config_lib.choose_evaluation(config, source)
    view = inputs.data.View(source, config.data.train_split)
  except Exception as error:
    raise ValueError(
      f'The config does not say the classes or the size of'
      f' {config.data.dataset}, which cannot be read here: {error} {needed}'
    ) from error
  return source.info.num_classes, len(view), view.selection.whole


def analyse(config: ml_collections.ConfigDict) -> Analysis:
  """Counts what a complete config computes."""
  counted = account(config)
  model = _model(config)
  an_epoch = config.data.examples_per_epoch or config.data.num_examples
  images = config.total_steps * config.data.batch_size
  epochs = images / an_epoch if an_epoch else None
  return Analysis(
    model=config.model.name,
    params=counted.params,
    forward_macs=counted.macs,
    backward_macs=counted.backward_macs,
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
    tuned=_tuned(config, model),
  )


def _tuned(config: ml_collections.ConfigDict, model) -> Tuned | None:
  """Returns what a run saves; None if all parameters train."""
  key = np.asarray(jax.random.key_data(jax.random.key(config.seed)))
  tuning, _ = program_lib.build_tuning(config, model, key)
  if tuning.trained is None:
    return None
  params = jax.eval_shape(
    functools.partial(program_lib.fresh_params, config, model), key
  )
  trained, _ = tuning.split(params)
  # The rate does not matter for the state.
  optimizer = optimizer_lib.build_optimizer(config.optimizer, lambda _: 0.0)
  base = {k: v for k, v in params.items() if k != lora.FOLDER}
  sizes = [
    sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    for state in (
      jax.eval_shape(optimizer.init, tree) for tree in (trained, base)
    )
  ]
  return Tuned(
    sum(x.size for x in jax.tree.leaves(trained)),
    *sizes,
    changed=tuning.trained | tuning.adapted,
  )


def account(config: ml_collections.ConfigDict) -> accounting.Account:
  """Returns the account of a complete config's model."""
  key = (
    config.model.to_json_best_effort(),
    config.num_classes,
    tuple(config.image_size),
    config.channels,
    config.tuning.to_json_best_effort(),
    config.lora.to_json_best_effort(),
  )
  if key not in _ACCOUNTS:
    # The account needs only one trace of a scanned block, whose cost is the
    # same. A fast attention computes the same as the plain one.
    plain = {'scan': True, 'attention_implementation': 'plain'}
    options = models.options(config.model.name)
    tuned = _tuned(config, _model(config))
    if tuned:
      del plain['scan']  # Which single blocks train matters.
    model = _model(config, **{k: v for k, v in plain.items() if k in options})
    _ACCOUNTS[key] = accounting.account(
      model,
      tuple(config.image_size),
      config.channels,
      trained=tuned and tuned.changed.__contains__,
    )
  return _ACCOUNTS[key]


_ACCOUNTS: dict[tuple, accounting.Account] = {}


def _model(config: ml_collections.ConfigDict, **others):
  section = config.model.to_dict() | others
  return models.build(
    section.pop('name'), num_classes=config.num_classes, **section
  )


def _tokens(model, config: ml_collections.ConfigDict) -> int | None:
  grid = position.grid_of(model, tuple(config.image_size))
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
  """Returns the bytes per device of a tree of arrays or shapes."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape))
    * np.dtype(leaf.dtype).itemsize
    for leaf in jax.tree.leaves(tree)
  )
