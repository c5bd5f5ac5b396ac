"""Checks a config's values before anything is built from them."""

import math

import ml_collections

from vit_jax.config.keys import KEYS, find
from vit_jax.config.saved import flatten
from vit_jax.config.sections import metrics_of
from vit_jax.workdir import trackers


def validate(
  config: ml_collections.ConfigDict, *, complete: bool = True
) -> None:
  """Checks the values that no constructor checks.

  Args:
    config: the config; not changed.
    complete: whether the user must have set the locations of the data and of
      the weights; a plan needs neither.

  Raises:
    ValueError: a value is wrong; names the key, its value and what it may be.
  """
  flat = flatten(config)
  for name in (key for key in KEYS if key not in flat):
    section = name.rpartition('.')[0]
    raise ValueError(
      f'{name} is missing: a config that replaces the section {section!r} needs'
      f' all of its keys; config.{section}.update(...) changes single keys.'
    )
  for name, value in flat.items():
    parent = name.rpartition('.')[0]
    key = find(name, config[parent] if parent else None)
    least = key.least if key else None
    if None not in (least, value) and value < least:
      raise ValueError(f'{name}={value} must be at least {least}.')
  if complete and not config.data.dataset:
    raise ValueError(
      'data.dataset is not set: this config leaves the location of its data'
      ' to you. Pass --config.data.dataset=SPEC, for example'
      ' tfds:NAME or folder:/path/to/images.'
    )
  if bool(config.total_steps) == bool(config.epochs):
    raise ValueError(
      f'total_steps={config.total_steps} and epochs={config.epochs}: set'
      ' exactly one of the two, and the other to 0.'
    )
  if complete and config.init.checkpoint is None:
    raise ValueError(
      'init.checkpoint is not set: this config starts from trained weights.'
      ' Pass --config.init.checkpoint=WORKDIR of the run they come from (or'
      " '' to train from scratch)."
    )
  if complete:
    trackers.parse(config.log.trackers)
  _check_best(config)
  if config.guard.nonfinite not in ('stop', 'skip'):
    raise ValueError(
      f'guard.nonfinite={config.guard.nonfinite!r} is unknown; choose one of'
      " ['stop', 'skip']."
    )
  size = config.image_size
  if len(size) != 2 or any(not isinstance(s, int) or s < 1 for s in size):
    raise ValueError(
      f'image_size={size} must be (height, width) in pixels, such as'
      ' (224, 224).'
    )
  for key in ('epochs', 'mixup_alpha', 'cutmix_alpha'):
    if config[key] is not None and not math.isfinite(config[key]):
      raise ValueError(f'{key}={config[key]} must be finite.')
  if not config.cutmix_share <= 1:
    raise ValueError(f'cutmix_share={config.cutmix_share} must be at most 1.')
  if config.seed >= 2**32:
    raise ValueError(f'seed={config.seed} must be below 2**32.')
  if not 0 <= config.polyak.decay < 1:
    raise ValueError(f'polyak.decay={config.polyak.decay} must lie in [0, 1).')
  if not 0 < config.tuning.layer_decay <= 1:
    raise ValueError(
      f'tuning.layer_decay={config.tuning.layer_decay} must lie in (0, 1];'
      ' 1 gives all layers the same rate.'
    )
  alpha = config.lora.alpha
  if config.lora.rank and not (alpha > 0 and math.isfinite(alpha)):
    raise ValueError(f'lora.alpha={alpha} must be a positive number.')


def _check_best(config: ml_collections.ConfigDict) -> None:
  best = config.checkpoint.best
  choices = [
    f'{name}/{metric}'
    for name, section in config.evals.items()
    for metric in metrics_of(section)
  ]
  if best and best not in choices:
    raise ValueError(
      f'checkpoint.best={best!r} must be a metric of one of evals: {choices}.'
    )
