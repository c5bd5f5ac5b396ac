"""Calls the functions of `vit_jax.data` with the config's data options."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import ops, pipeline, splits
from vit_jax.data.cache import Cache


def open_source(
  config: ml_collections.ConfigDict,
  dataset: str,
  *,
  label_key: str = '',
  own_classes: bool = False,
) -> data.Source:
  """Opens a data spec with the options of the config's `data` section.

  Args:
    config: the run's config.
    dataset: the data spec.
    label_key: the key of the label. '' is the config's key for the training
      data, and TFDS's usual 'label' for other data.
    own_classes: whether the data may have other classes than the model.
  """
  # The same data set, whatever is excluded from it.
  own, (given, _) = config.data, data.exclusion.split(dataset)
  trained_on = given == data.exclusion.split(own.dataset or '')[0]
  return data.open_source(
    dataset,
    data_dir=own.data_dir,
    image_key=own.image_key if trained_on else 'image',
    label_key=label_key or (own.label_key if trained_on else 'label'),
    num_classes=0 if own_classes else config.num_classes or 0,
  )


def complete(
  config: ml_collections.ConfigDict,
  source: data.Source,
  adopt: Callable[
    [ml_collections.ConfigDict], ml_collections.ConfigDict
  ] = lambda config: config,
) -> tuple[ml_collections.ConfigDict, data.View]:
  """Completes the config of a training run, once its data are open.

  In this order: `settle` chooses the split of an evaluation, `adopt` takes the
  model from the weights that the run starts from, and `config.resolve` derives
  everything else.

  Args:
    config: valid; not changed.
    source: the training data.
    adopt: see `warm_start.with_model`.

  Returns:
    The complete config, and the split to train on.

  Raises:
    ValueError: the config does not suit the data or the weights.
  """
  config = settle(config, source)
  check_classes(config, source)
  view = data.View(source, config.data.train_split)
  config = config_lib.resolve(
    adopt(config),
    num_examples=len(view),
    num_classes=source.info.num_classes,
    whole=view.selection.whole,
  )
  return config, view


def settle(
  config: ml_collections.ConfigDict, source: data.Source
) -> ml_collections.ConfigDict:
  """Chooses the split of an evaluation called `config.AUTO`, if there is one.

  This is the one that the command line names, or that called test, validation
  or val. Without any of them, a random tenth of the training data is held out
  and used.

  Args:
    config: the run's config; not changed.
    source: the training data.

  Returns:
    A copy in which the evaluation has that split, and a name after it. So has
    the one without near-duplicates, see `config.add_clean`.
  """
  config = config.copy_and_resolve_references()
  if config_lib.AUTO not in config.evals:
    return config
  split = config.evals[config_lib.AUTO].split
  trained_on = config.data.train_split
  known = source.info.splits
  used = {splits.find(name, known) for name in splits.names(trained_on)}
  others = {
    name: found
    for name in ('test', 'validation', 'val')
    if (found := splits.find(name, known)) and found not in used
  }
  clean = config_lib.AUTO + config_lib.CLEAN
  if split != config_lib.AUTO:
    name = config_lib.name_of_split(split)
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
  for old, new in (config_lib.AUTO, name), (clean, name + config_lib.CLEAN):
    if old in config.evals:
      section = config.evals[old]
      del config.evals[old]
      section.split = split
      config.evals[new] = section
  metric = config.checkpoint.best.removeprefix(f'{config_lib.AUTO}/')
  if metric != config.checkpoint.best:
    config.checkpoint.best = f'{name}/{metric}'
  return config


def check_classes(
  config: ml_collections.ConfigDict, source: data.Source
) -> None:
  """Warns of classes without an image in a part that is used.

  Args:
    config: the result of `settle`.
    source: the training data. Only sources that know how many images each
      class has (`class_counts`), and sort them by class, are checked. For a
      random part, the range from which it is drawn counts.

  Raises:
    ValueError: there is only one class, and labels are learnt.
  """
  counts = getattr(source, 'class_counts', None)
  if counts is None or config.loss.name == config_lib.MASKED_PATCH:
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


def parse_preprocess(
  config: ml_collections.ConfigDict,
  text: str,
  dataset: str = '',
  *,
  train: bool = False,
) -> ops.Preprocess:
  """Parses a preprocessing string for the config's image size and channels.

  Args:
    config: a resolved config.
    text: see `data/ops.py`.
    dataset: the data spec to preprocess; '' is the training data's.
    train: whether it is for training, which may decode smaller images.
  """
  return ops.parse(
    text,
    image_size=tuple(config.image_size),
    channels=config.channels,
    upright=is_upright(config, dataset or config.data.dataset),
    jpeg_dct=config.data.jpeg_dct,
    scaled=train and config.data.scaled_decoding,
  )


def is_upright(config: ml_collections.ConfigDict, dataset: str) -> bool:
  """Whether a data spec's images are rotated by their EXIF orientation."""
  upright = config.data.exif_orientation
  return config_lib.is_located(dataset) if upright is None else upright


def stored_size(config: ml_collections.ConfigDict) -> str:
  """Returns the stored size of the first training image; `?` if corrupt."""
  source = open_source(config, config.data.dataset)
  first = data.View(source, config.data.train_split)[0]
  try:
    height, width, _ = ops.decode(first.image, config.channels).shape
  except ops.CorruptImageError:
    return '?'
  return f'{height}x{width}'


def reading(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the arguments that `train_batches` and `eval_batches` share."""
  names = 'max_labels', 'unreadable', 'threads', 'workers', 'read_ahead'
  return {
    'num_classes': config.num_classes,
    'cache': _cache(config),
    **{name: config.data[name] for name in names},
  }


# All views of a run share one cache.
_caches = weakref.WeakValueDictionary()


def _cache(config: ml_collections.ConfigDict) -> Cache | None:
  key = config.data.cache, config.data.cache_gib
  if not key[0]:
    return None
  if config.data.scaled_decoding:
    raise ValueError(
      'data.cache keeps whole images, so data.scaled_decoding would do nothing;'
      ' set one of them'
    )
  cache = _caches.get(key)
  if cache is None:
    cache = _caches[key] = Cache(*key)
  return cache


def check_first_record(
  config: ml_collections.ConfigDict,
  view: data.View,
  preprocess: ops.Preprocess,
  **labels: int,
) -> None:
  """Decodes one example of a split with the config's options.

  Args:
    config: a resolved config.
    view: the split.
    preprocess: the split's preprocessing.
    **labels: num_classes and max_labels, where they are not the config's.
  """
  names = 'num_classes', 'max_labels', 'unreadable'
  options = {name: reading(config)[name] for name in names} | labels
  pipeline.check_first_record(view, preprocess, **options)
