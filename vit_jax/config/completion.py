"""Completes a config when its data are open, in one place.

`complete` is the whole story; the functions below it are its parts, in the
order in which it calls them.
"""

import math

import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import data, models
from vit_jax.config import platforms
from vit_jax.config.arguments import CLEAN, name_of_split
from vit_jax.config.keys import AUTO
from vit_jax.config.sections import PATCH_LOSSES
from vit_jax.data import splits


def complete(
  config: ml_collections.ConfigDict,
  source: data.Source,
) -> tuple[ml_collections.ConfigDict, data.View]:
  """Completes the config of a training run, once its data are open.

  `choose_evaluation` chooses the split of an evaluation called `AUTO`, and
  `resolve` sets everything else that is open.

  Args:
    config: valid, and names its model; not changed.
    source: the training data.

  Returns:
    The complete config, and the split to train on.

  Raises:
    ValueError: the config does not suit the data or the weights.
  """
  config = choose_evaluation(config, source)
  _check_classes(config, source)
  view = data.View(source, config.data.train_split)
  config = resolve(
    config,
    num_examples=len(view),
    num_classes=source.info.num_classes,
    whole=view.selection.whole,
  )
  return config, view


def choose_evaluation(
  config: ml_collections.ConfigDict, source: data.Source
) -> ml_collections.ConfigDict:
  """Chooses the split of an evaluation called `AUTO`, if there is one.

  This is the one that the command line names, or that called test, validation
  or val. Without any of them, a random tenth of the training data is held out
  and used.

  Args:
    config: the run's config; not changed.
    source: the training data.

  Returns:
    A copy in which the evaluation has that split, and a name after it. So has
    the one without near-duplicates, see `arguments.add_clean`.
  """
  config = config.copy_and_resolve_references()
  if AUTO not in config.evals:
    return config
  split = config.evals[AUTO].split
  trained_on = config.data.train_split
  known = source.info.splits
  used = {splits.find(name, known) for name in splits.names(trained_on)}
  others = {
    name: found
    for name in ('test', 'validation', 'val')
    if (found := splits.find(name, known)) and found not in used
  }
  clean = AUTO + CLEAN
  if split != AUTO:
    name = name_of_split(split)
  elif others:
    name, split = next(iter(others.items()))
    logging.info('Evaluating on the split %r, as %s/....', split, name)
  elif clean in config.evals:
    raise ValueError(
      f'{source.info.spec} has no split called test, validation or val, and'
      ' a list of duplicates is about such a split: leave out clean=.'
    )
  else:
    name, split = 'held_out', f'shuffled({trained_on})[90%:]'
    config.data.train_split = f'shuffled({trained_on})[:90%]'
    logging.info(
      '%s has no split called test, validation or val among %s: holding a'
      ' random tenth of %r out of training, and evaluating on it, as'
      ' held_out/.... To evaluate on another split, pass'
      ' --config.evals.auto.split=NAME.',
      *(source.info.spec, ', '.join(sorted(known)), trained_on),
    )
  with config.unlocked():
    for old, new in (AUTO, name), (clean, name + CLEAN):
      if old in config.evals:
        section = config.evals[old]
        del config.evals[old]
        section.split = split
        config.evals[new] = section
  metric = config.checkpoint.best.removeprefix(f'{AUTO}/')
  if metric != config.checkpoint.best:
    config.checkpoint.best = f'{name}/{metric}'
  return config


def _check_classes(
  config: ml_collections.ConfigDict, source: data.Source
) -> None:
  """Warns of classes without an image in a part that is used.

  Only sources that are sorted by class are checked. For a random part, the
  range from which it is drawn counts.

  Raises:
    ValueError: there is only one class, and labels are learnt.
  """
  if not source.sorted_by_class or config.loss.name in PATCH_LOSSES:
    return
  names = source.info.class_names
  if len(names) == 1:
    raise ValueError(
      f'{source.info.spec} has one class, {names[0]!r}, so there is nothing to'
      ' tell apart: give each class a folder of its own.'
    )
  used = [config.data.train_split] + [
    section.split
    for section in config.evals.values()
    if section.kind == 'classification' and not section.dataset
  ]
  for part in dict.fromkeys(used):
    found = sum(
      np.bincount(source.labels(split)[start:stop], minlength=len(names))
      for split, start, stop in splits.resolve(part, source.info.splits).ranges
    )
    missing = [names[i] for i in np.flatnonzero(found == 0)]
    if missing and jax.process_index() == 0:
      logging.warning(
        '%s: %d of %d classes have no image in %r: %s. Is a folder misspelt, or'
        ' not a class? A random part, shuffled(%s), has images of all classes.',
        *(source.info.spec, len(missing), len(names), part),
        ', '.join(missing[:10]) + (', ...' if missing[10:] else ''),
        min(splits.names(part)),
      )


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
    data.examples_per_epoch (if -1), data.batch_size (if 0), those of
    `fill_in`, and model.dtype and model.attention_implementation (if open).

  Raises:
    ValueError: the config states another size or class count, counts epochs
      of an unknown size, or has less than one step.
  """
  config = config.copy_and_resolve_references()
  section = config.data
  for key, holder, found in (
    ('num_classes', config, num_classes),
    ('num_examples', section, num_examples),
  ):
    if holder[key] and holder[key] != found:
      raise ValueError(
        f'{key}={holder[key]} in the config, but {section.dataset!r} has'
        f' {found} (split {section.train_split!r}). Correct the config, or set'
        ' it to 0 to take it from the data.'
      )
    holder[key] = found
  if section.examples_per_epoch == -1:
    if not whole and not config.total_steps:
      raise ValueError(
        'data.examples_per_epoch=-1 needs the size of the data from which'
        f' data.train_split={section.train_split!r} is taken, which is not'
        ' known here: set data.examples_per_epoch to a number of examples, or'
        ' set total_steps instead of epochs.'
      )
    section.examples_per_epoch = whole
  if not section.batch_size:
    # The largest power of two, see `data.batch_size` in `keys.py`. A run on a
    # subset gets the batch size of the whole data set.
    share, most = (8, 512) if config.init.checkpoint else (256, 4096)
    part = (section.examples_per_epoch or num_examples) // share
    batch = min(most, max(16, 2 ** (part.bit_length() - 1)))
    # A plan is for other devices than these, and checks its mesh itself.
    devices = 1 if platform else jax.device_count()
    section.batch_size = -(-batch // devices) * devices
  fill_in(config)
  if config.total_steps < 1:
    raise ValueError(
      f'epochs={config.epochs} of'
      f' {section.examples_per_epoch or num_examples} examples at'
      f' data.batch_size={section.batch_size} is less than one step: pass'
      ' a smaller batch size, or --config.data.batch_size=0, which chooses'
      ' it by the number of examples.'
    )
  given = config.model.to_dict()
  dtype = given.pop('dtype') or 'auto'
  model = models.build(given.pop('name'), num_classes=1, **given)
  for key, value in platforms.defaults(model, platform, dtype).items():
    if config.model[key] in (None, 'auto'):
      config.model[key] = value
  return config


def fill_in(config: ml_collections.ConfigDict) -> None:
  """Sets what follows from other values of a config, as far as these are set.

  These are total_steps, model.head_bias and head_stddev, the schedule's
  warmup_steps and peak, and the evaluations' `every`. The schedule's
  warmup_epochs and peak_batch become 0 once they are used.

  Args:
    config: changed.
  """
  section, batch_size = config.data, config.data.batch_size
  an_epoch = max(section.examples_per_epoch or section.num_examples or 0, 0)
  if not config.total_steps and config.epochs and batch_size and an_epoch:
    config.total_steps = int(config.epochs * an_epoch / batch_size)
  steps, classes = config.total_steps, config.num_classes
  if config.model.head_bias is None and classes:
    # For sigmoids, one class's log-odds. A softmax of equal scores predicts
    # equal probabilities without a bias.
    is_sigmoid = config.loss.name == 'sigmoid'
    bias = -math.log(max(1, classes - 1)) if is_sigmoid else 0.0
    config.model.head_bias = bias
  model, by_norm = config.model, config.optimizer.name in ('lamb', 'lars')
  if by_norm and model.name != AUTO and model.head_stddev is None:
    # Steps in proportion to the weights would leave a head of zeros there.
    known = 'head_stddev' in models.options(model.name)
    model.head_stddev = 0.02 if known else None
  schedule = config.schedule
  if schedule.warmup_steps == -1 and steps:
    schedule.warmup_steps = min(10_000, steps // 10)
  # What is used is set to 0, so that nothing is used twice.
  if schedule.warmup_epochs and batch_size and an_epoch:
    warmup_steps = int(schedule.warmup_epochs * an_epoch / batch_size)
    schedule.update(warmup_steps=warmup_steps, warmup_epochs=0.0)
  if schedule.peak == -1 and batch_size:
    # ImageNet's row of Table 3, or Table 4, adapted to other batch sizes.
    of_sgd = config.optimizer.name == 'sgd'
    rate, batch = (0.03, 512) if of_sgd else (3e-3, 4096)
    schedule.peak = rate * math.sqrt(batch_size / batch)
  elif schedule.peak_batch and batch_size:
    schedule.peak *= batch_size / schedule.peak_batch
    schedule.peak_batch = 0
  for evaluation in config.evals.values():
    if evaluation.every == -1 and steps:
      evaluation.every = max(1, steps // 10)
