"""The values of a config that follow from the data and the platform."""

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
  """Fills in what follows from the data and the platform.

  Args:
    config: as given; not changed.
    num_examples: of the training split.
    num_classes: of the data set.
    whole: examples that the training split takes a part of, as
      `Selection.whole` has it; 0 if that is not known.
    platform: that the run is for, 'tpu', 'gpu' or 'cpu'; None is JAX's here.

  Returns:
    A copy with num_classes, data.num_examples, data.examples_per_epoch (if
    -1), data.batch_size (if 0), model.head_bias, total_steps, what the schedule
    leaves open, evaluations that are every tenth of the run, and what
    `platforms` knows set.

  Raises:
    ValueError: the config states another size or class count, or counts
      epochs of what is not known.
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
        'data.examples_per_epoch=-1 needs the size of what data.train_split='
        f'{config.data.train_split!r} is taken from, which is not known here:'
        ' set it to a number of examples, or total_steps instead of epochs.'
      )
    config.data.examples_per_epoch = whole
  if not config.data.batch_size:
    # That of the whole, for a part of it.
    batch = _batch_size(config.data.examples_per_epoch or num_examples)
    # Of a plan, whose devices are not these, the mesh is checked anyway.
    devices = 1 if platform else jax.device_count()
    config.data.batch_size = -(-batch // devices) * devices
  if not config.total_steps:
    an_epoch = config.data.examples_per_epoch or num_examples
    steps = int(config.epochs * an_epoch / config.data.batch_size)
    if steps < 1:
      raise ValueError(
        f'epochs={config.epochs} of {an_epoch} examples at'
        f' data.batch_size={config.data.batch_size} is less than one step: pass'
        ' --config.data.batch_size=0, which chooses one by the number of'
        ' examples, or a smaller one.'
      )
    config.total_steps = steps
  if config.schedule.warmup_steps == -1:
    config.schedule.warmup_steps = min(10_000, config.total_steps // 10)
  if config.schedule.peak == -1:
    # ImageNet's row of Table 3, for other batches.
    config.schedule.peak = 3e-3 * math.sqrt(config.data.batch_size / 4096)
  for section in config.evals.values():
    if section.every == -1:
      section.every = max(1, config.total_steps // 10)
  platforms.fill_in(config, platform)
  return config


def _batch_size(num_examples: int) -> int:
  """The power of two up to a 256th of the examples, 16 to 4096."""
  return 2 ** min(12, max(4, (num_examples // 256).bit_length() - 1))


def _head_bias(loss: str, num_classes: int) -> float:
  """Where the head's bias starts: at the log-odds of one class of them all.

  A softmax of equal scores has that already.
  """
  return -math.log(max(1, num_classes - 1)) if loss == 'sigmoid' else 0.0
