"""Calls the functions of `vit_jax.data` with the config's data options."""

import weakref
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import ops
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
  own, (given, _) = config.data, data.exclusion.split(dataset)
  trained_on = given == data.exclusion.split(own.dataset or '')[0]
  return data.open_source(
    dataset,
    data_dir=own.data_dir,
    image_key=own.image_key if trained_on else 'image',
    label_key=label_key or (own.label_key if trained_on else 'label'),
    num_classes=0 if own_classes else config.num_classes or 0,
  )


def parse_preprocess(
  config: ml_collections.ConfigDict,
  text: str,
  dataset: str = '',
) -> ops.Preprocess:
  """Parses a preprocessing string for the config's image size and channels.

  Args:
    config: a complete config.
    text: see `data/ops`.
    dataset: the data spec to preprocess; '' is the training data's.
  """
  return ops.parse(
    text,
    image_size=tuple(config.image_size),
    channels=config.channels,
    upright=is_upright(config, dataset or config.data.dataset),
    jpeg_dct=config.data.jpeg_dct,
  )


def is_upright(config: ml_collections.ConfigDict, dataset: str) -> bool:
  """Whether a data spec's images are rotated by their EXIF orientation."""
  upright = config.data.exif_orientation
  return config_lib.is_located(dataset) if upright is None else upright


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
  where, gib = config.data.cache, config.data.cache_gib
  if not where:
    return None
  if where != 'memory':
    raise ValueError(f"data.cache={where!r} must be 'memory' or ''")
  cache = _caches.get(gib)
  if cache is None:
    cache = _caches[gib] = Cache(gib)
  return cache
