"""Derives values of a config from the data and the platform."""

import math

import jax
import ml_collections

from vit_jax.config import platforms


def resolve(
  config: ml_collections.ConfigDict,
  *,
  num_examples: int,
  num_classes: int,
  whole: int = 0,
  platform: str | None = None,
) -> ml_collections.ConfigDict:
  """Fills in the values that follow from the data and the platform.

  Args:
    config: the given config; not changed.
    num_examples: the number of examples of the training split.
    num_classes: the number of classes of the data set.
    whole: the number of examples from which the training split is taken, see
      `Selection.whole`; 0 if unknown.
    platform: the run's platform, 'tpu', 'gpu' or 'cpu'; None is JAX's default.

  Returns:
    A copy with these values set: num_classes, data.num_examples,
    data.examples_per_epoch (if -1), data.batch_size (if 0), model.head_bias,
    total_steps, the schedule's warmup_steps and peak and the evaluations'
    `every` (each if -1), and the values of `platforms`.

  Raises:
    ValueError: the config states another size or class count, counts epochs
      of an unknown size, or has less than one step.
  """
  config = config.copy_and_resolve_references()
  for key, section, found in (
    ('num_classes', config, num_classes),
    ('num_examples', config.data, num_examples),
  ):
    if section[key] and section[key] != found:
      raise ValueError(
        f'{key}={section[key]} in the config, but {config.data.dataset!r}'
        f' has {found} (split {config.data.train_split!r}). Correct the'
        ' config, or set it to 0 to take it from the data.'
      )
    section[key] = found
  if config.model.head_bias is None:
    config.model.head_bias = _head_bias(config.loss.name, num_classes)
  if config.data.examples_per_epoch == -1:
    if not whole and not config.total_steps:
      raise ValueError(
        'data.examples_per_epoch=-1 needs the size of the data from which'
        f' data.train_split={config.data.train_split!r} is taken, which is not'
        ' known here: set data.examples_per_epoch to a number of examples, or'
        ' set total_steps instead of epochs.'
      )
    config.data.examples_per_epoch = whole
  if not config.data.batch_size:
    # A run on a subset gets the batch size of the whole data set.
    batch = _batch_size(
      config.data.examples_per_epoch or num_examples,
      fine_tuning=bool(config.init.checkpoint),
    )
    # A plan is for other devices than these, and checks its mesh itself.
    devices = 1 if platform else jax.device_count()
    config.data.batch_size = -(-batch // devices) * devices
  if not config.total_steps:
    an_epoch = config.data.examples_per_epoch or num_examples
    steps = _steps(config, an_epoch)
    if steps < 1:
      raise ValueError(
        f'epochs={config.epochs} of {an_epoch} examples at'
        f' data.batch_size={config.data.batch_size} is less than one step: pass'
        ' a smaller batch size, or --config.data.batch_size=0, which chooses'
        ' it by the number of examples.'
      )
    config.total_steps = steps
  _fill_in(config)
  platforms.fill_in(config, platform)
  return config


def resolve_without_data(
  config: ml_collections.ConfigDict,
) -> ml_collections.ConfigDict:
  """Returns a copy with what `resolve` derives from the config alone.

  These are total_steps, model.head_bias, the schedule's warmup_steps and peak,
  and the evaluations' `every`, each if the values that it follows from are set.
  """
  config = config.copy_and_resolve_references()
  section = config.data
  an_epoch = section.examples_per_epoch or section.num_examples or 0
  if not config.total_steps and config.epochs and section.batch_size:
    config.total_steps = _steps(config, max(an_epoch, 0)) or config.total_steps
  if config.model.head_bias is None and config.num_classes:
    config.model.head_bias = _head_bias(config.loss.name, config.num_classes)
  _fill_in(config)
  return config


def _steps(config: ml_collections.ConfigDict, an_epoch: int) -> int:
  return int(config.epochs * an_epoch / config.data.batch_size)


def _fill_in(config: ml_collections.ConfigDict) -> None:
  """Derives values from total_steps and batch size, if these are set."""
  steps, batch_size = config.total_steps, config.data.batch_size
  if config.schedule.warmup_steps == -1 and steps:
    config.schedule.warmup_steps = min(10_000, steps // 10)
  if config.schedule.peak == -1 and batch_size:
    # ImageNet's row of Table 3, or Table 4, adapted to other batch sizes.
    of_sgd = config.optimizer.name == 'sgd'
    rate, batch = (0.03, 512) if of_sgd else (3e-3, 4096)
    config.schedule.peak = rate * math.sqrt(batch_size / batch)
  for section in config.evals.values():
    if section.every == -1 and steps:
      section.every = max(1, steps // 10)


def _batch_size(num_examples: int, *, fine_tuning: bool) -> int:
  """Returns a power of two, see `data.batch_size` in `keys.py`."""
  share, most = (8, 512) if fine_tuning else (256, 4096)
  return min(most, max(16, 2 ** ((num_examples // share).bit_length() - 1)))


def _head_bias(loss: str, num_classes: int) -> float:
  """Returns the head's initial bias: for sigmoids, one class's log-odds.

  A softmax of equal scores predicts equal probabilities without a bias.
  """
  return -math.log(max(1, num_classes - 1)) if loss == 'sigmoid' else 0.0
