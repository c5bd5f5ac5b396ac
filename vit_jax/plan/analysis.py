"""Finds what is known about a run without compiling it."""

import functools
import math
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import accounting, models
from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.losses import distillation, masked_patch
from vit_jax.models import position
from vit_jax.training import program as program_lib
from vit_jax.training import teacher
from vit_jax.training import tuning as tuning_lib

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
# Settings that affect memory and speed.
_SETTINGS = (
  *('accumulation_steps', 'dropout_rng', 'mesh.data', 'mesh.fsdp'),
  *('mesh.tensor', 'mesh.shard', 'mesh.gather', 'mesh.partition'),
  *('model.attention_implementation', 'model.dtype', 'model.remat'),
  'model.scan',
)


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
  try:
    config = teacher.with_model(config, '.')
  except ValueError as error:
    raise ValueError(f'{error} A plan needs only its distill.model.') from error
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


def analyse(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the figures of a complete config that depend on no device.

  Returns:
    Figures by name. `trained_params` counts low-rank additions, too. `tokens`
    is None in a ResNet, `epochs` if the size of the training set is unknown.
    `paper_core_days` is what the paper spent, if this is a run of its Table 2.
    `settings` are those that memory and speed depend on.
  """
  counted, flat = account(config), config_lib.flatten(config)
  batch, steps = config.data.batch_size, config.total_steps
  an_epoch = config.data.examples_per_epoch or config.data.num_examples
  exaflops = accounting.exaflops(counted.macs, batch, steps)
  return {
    'model': config.model.name,
    'params': counted.params,
    'trained_params': _trained_params(config),
    'forward_gmacs': counted.macs / 1e9,
    'backward_gmacs': counted.backward_macs / 1e9,
    'teacher_gmacs': _teacher_macs(config) / 1e9 or None,
    'tokens': _tokens(config),
    'image_size': list(config.image_size),
    'batch_size': batch,
    'total_steps': steps,
    'epochs': steps * batch / an_epoch if an_epoch else None,
    'total_exaflops': step_flops(config) * steps / 1e18,
    'paper_core_days': _paper_core_days(config, exaflops),
    'settings': {key: flat[key] for key in _SETTINGS if key in flat},
  }


def step_flops(config: ml_collections.ConfigDict) -> float:
  """Returns the operations of a step, without elementwise ones and remat.

  The forward pass is a third of them, see `accounting`; it is more if less than
  the whole model trains, or with a teacher, whose forward pass counts, too. SAM
  computes two gradients. If steps draw the size of patches, this is their mean.
  """
  if sides := config.flexi.patch_sizes:
    total = 0.0
    for side in sides:
      drawn = config.copy_and_resolve_references()
      drawn.flexi.patch_sizes, drawn.model.patch_size = (), (side, side)
      total += step_flops(drawn)
    return total / len(sides)
  counted = account(config)
  macs = counted.macs + counted.backward_macs
  gradients = macs * (2 if config.sam.rho else 1) + _teacher_macs(config)
  return 2 * gradients * config.data.batch_size


def _teacher_macs(config: ml_collections.ConfigDict) -> int:
  """Returns those of a teacher's forward pass of an image; 0 without one."""
  if config.distill.teacher == '':
    return 0
  image = distillation.image_size(config), config.channels
  return _forward_macs(config.distill.model, config.num_classes, *image)


@functools.cache
def _forward_macs(spec: str, classes: int, *image) -> int:
  return accounting.forward_macs(
    models.parse(spec, num_classes=classes), *image
  )


def _tuning(config: ml_collections.ConfigDict) -> tuning_lib.Tuning:
  key = jax.random.key_data(jax.random.key(config.seed))
  return program_lib.build_tuning(config, _model(config), np.asarray(key))[0]


def _trained_params(config: ml_collections.ConfigDict) -> int:
  """Counts the parameters that train, low-rank additions included."""
  params = jax.eval_shape(
    functools.partial(program_lib.fresh_params, config, _model(config)),
    jax.random.key_data(jax.random.key(config.seed)),
  )
  trained, _ = _tuning(config).split(params)
  return sum(x.size for x in jax.tree.leaves(trained))


def account(config: ml_collections.ConfigDict) -> accounting.Account:
  """Returns the account of a complete config's model."""
  sections = 'model', 'num_classes', 'image_size', 'channels', 'tuning', 'lora'
  key = str([config[section] for section in (*sections, 'loss')])
  if key not in _ACCOUNTS:
    # The account needs only one trace of a scanned block, whose cost is the
    # same. A fast attention computes the same as the plain one.
    plain = {'scan': True, 'attention_implementation': 'plain'}
    options = models.options(config.model.name)
    tuning, changed = _tuning(config), None
    if tuning.trained is not None:
      del plain['scan']  # Which single blocks train matters.
      # The gradient passes through what trains, and kernels with additions.
      changed = (tuning.trained | tuning.adapted).__contains__
    model = _model(config, **{k: v for k, v in plain.items() if k in options})
    _ACCOUNTS[key] = accounting.account(
      model,
      tuple(config.image_size),
      config.channels,
      trained=changed,
    )
  return _ACCOUNTS[key]


_ACCOUNTS: dict[str, accounting.Account] = {}


def _model(config: ml_collections.ConfigDict, **others):
  section = config.model.to_dict() | others
  model = models.build(
    section.pop('name'), num_classes=config.num_classes, **section
  )
  # Masked autoencoders alone differ much from the config's model.
  is_mae = config.loss.name == config_lib.MAE
  return masked_patch.build(config, model).model if is_mae else model


def _tokens(config: ml_collections.ConfigDict) -> int | None:
  model = _model(config)
  grid = position.grid_of(model, tuple(config.image_size))
  if grid is None:
    return None
  return math.prod(grid) + getattr(model, 'num_prefix_tokens', 0)


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
