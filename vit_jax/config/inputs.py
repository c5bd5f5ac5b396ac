"""Calls the functions of `vit_jax.data` with the config's data options."""

import weakref
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import ops, pipeline, splits
from vit_jax.data.batches.cache import Cache


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
  trained_on, _ = data.exclusion.split(config.data.dataset or '')
  trained_on = data.exclusion.split(dataset)[0] == trained_on
  image_key = config.data.image_key if trained_on else 'image'
  label_key = label_key or (config.data.label_key if trained_on else 'label')
  return data.open_source(
    dataset,
    data_dir=config.data.data_dir,
    image_key=image_key,
    label_key=label_key,
    num_classes=0 if own_classes else config.num_classes or 0,
  )


def settle(
  config: ml_collections.ConfigDict, source: data.Source
) -> ml_collections.ConfigDict:
  """Chooses the split of an evaluation called `config.AUTO`, if there is one.

  This is the split called test, validation or val. Without any of them, a
  random tenth of the training data is held out and used. Names in capitals
  count if the training split is found only by such a name, because runs that
  are older than this held out a tenth.

  Args:
    config: the run's config; not changed.
    source: the training data.

  Returns:
    A copy in which the evaluation has that split, and a name after it.
  """
  config = config.copy_and_resolve_references()
  if config_lib.AUTO not in config.evals:
    return config
  section = config.evals[config_lib.AUTO]
  del config.evals[config_lib.AUTO]
  trained_on = config.data.train_split
  if section.split != config_lib.AUTO:  # Given on the command line.
    name = config_lib.name_of_split(section.split)
    config.evals[name] = section
    _settle_clean(config, name, section.split)
    return config
  known = source.info.splits
  used = splits.names(trained_on)
  exact = used <= known.keys() | {'all'}
  others = known.keys() - {splits.find(name, known) for name in used}
  for name in ('test', 'validation', 'val'):
    split = name if exact else splits.find(name, known)
    if split in others:
      section.split = split
      logging.info('Evaluating on the split %r, as %s/....', split, name)
      break
  else:
    name = 'held_out'
    config.data.train_split = f'shuffled({trained_on})[:90%]'
    section.split = f'shuffled({trained_on})[90%:]'
    if config_lib.AUTO_CLEAN in config.evals:
      raise ValueError(
        f'{source.info.spec} has no split called test, validation or val, and'
        ' a list of duplicates is about such a split: leave out clean=.'
      )
    logging.info(
      '%s has no split called test, validation or val: holding a random tenth'
      ' of %r out of training, and evaluating on it, as held_out/....%s',
      *(source.info.spec, trained_on),
      f' To evaluate on another split ({", ".join(sorted(others))}), pass'
      ' --config.evals.auto.split=NAME.'
      if others
      else '',
    )
  config.evals[name] = section
  _settle_clean(config, name, section.split)
  best = config.checkpoint.best
  if best.startswith(f'{config_lib.AUTO}/'):
    config.checkpoint.best = name + best.removeprefix(config_lib.AUTO)
  return config


def _settle_clean(
  config: ml_collections.ConfigDict, name: str, split: str
) -> None:
  """Gives the clean evaluation the name and the split of the other one."""
  if config_lib.AUTO_CLEAN in config.evals:
    clean = config.evals[config_lib.AUTO_CLEAN]
    del config.evals[config_lib.AUTO_CLEAN]
    clean.split = split
    config.evals[f'{name}{config_lib.CLEAN}'] = clean


def check_classes(
  config: ml_collections.ConfigDict, source: data.Source
) -> None:
  """Warns of classes without an image in a part that is used.

  Args:
    config: the result of `settle`.
    source: the training data. Only sources that are sorted by class are
      checked. For a random part, the range from which it is drawn counts.

  Raises:
    ValueError: there is only one class, and labels are learnt.
  """
  if not source.sorted_by_class or config.loss.name == config_lib.MASKED_PATCH:
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
    text: see `data/ops`.
    dataset: the data spec to preprocess; '' is the training data's.
    train: whether it is for training, which may decode smaller images.
  """
  return ops.parse(
    text,
    image_size=tuple(config.image_size),
    channels=config.channels,
    upright=is_upright(config, dataset or config.data.dataset),
    # Runs that are older than this key decoded accurately.
    jpeg_dct=config.data.get('jpeg_dct', 'accurate'),
    max_pixels=config.data.get('max_pixels', ops.MAX_PIXELS),
    scaled=train and config.data.get('scaled_decoding', False),
  )


def is_upright(config: ml_collections.ConfigDict, dataset: str) -> bool:
  """Whether a data spec's images are rotated by their EXIF orientation."""
  # Runs that are older than this key ignored it.
  upright = config.data.get('exif_orientation', False)
  return config_lib.is_located(dataset) if upright is None else upright


def stored_size(config: ml_collections.ConfigDict) -> str:
  """Returns the stored size of the first training image; `?` if corrupt."""
  source = open_source(config, config.data.dataset)
  first = data.View(source, config.data.train_split)[0]
  try:
    height, width, _ = ops.decode(
      first.image,
      config.channels,
      # Older runs have no such key.
      max_pixels=config.data.get('max_pixels', ops.MAX_PIXELS),
    ).shape
  except ops.CorruptImageError:
    return '?'
  return f'{height}x{width}'


def reading(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the arguments that `train_batches` and `eval_batches` share."""
  return dict(
    num_classes=config.num_classes,
    max_labels=config.data.max_labels,
    unreadable=config.data.unreadable,
    threads=config.data.threads,
    workers=config.data.workers,
    prefetch=config.data.prefetch,
    # Older runs have no such key.
    read_ahead=config.data.get('read_ahead'),
    cache=_cache(config),
  )


# All views of a run share one cache.
_caches = weakref.WeakValueDictionary()


def _cache(config: ml_collections.ConfigDict) -> Cache | None:
  # Older runs have no such keys.
  key = config.data.get('cache', ''), config.data.get('cache_gib', 0.0)
  if not key[0]:
    return None
  if config.data.get('scaled_decoding', False):
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
  *,
  num_classes: int = 0,
  max_labels: int = 0,
) -> None:
  """Decodes one example of a split with the config's options.

  Args:
    config: a resolved config.
    view: the split.
    preprocess: the split's preprocessing.
    num_classes: the data set's number of classes; 0 is the config's.
    max_labels: the most labels per image; 0 is the config's.
  """
  pipeline.check_first_record(
    view,
    preprocess,
    num_classes=num_classes or config.num_classes,
    max_labels=max_labels or config.data.max_labels,
    unreadable=config.data.unreadable,
  )
