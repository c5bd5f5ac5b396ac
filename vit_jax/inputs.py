"""The config's data section, handed to the functions of `vit_jax.data`."""

from typing import Any

import ml_collections

from vit_jax import data
from vit_jax.data import ops, pipeline


def open_source(
  config: ml_collections.ConfigDict,
  dataset: str,
  *,
  label_key: str = '',
  own_classes: bool = False,
) -> data.Source:
  """Opens a data spec with the options of the config's `data` section.

  Args:
    config: of the run.
    dataset: the data spec.
    label_key: of the label, if not ''; else that of the config if it is the
      training data, and otherwise TFDS's usual one.
    own_classes: whether its classes need not be those the model is trained on.
  """
  trained_on = dataset == config.data.dataset
  image_key = config.data.image_key if trained_on else 'image'
  label_key = label_key or (config.data.label_key if trained_on else 'label')
  return data.open_source(
    dataset,
    data_dir=config.data.data_dir,
    image_key=image_key,
    label_key=label_key,
    num_classes=0 if own_classes else config.num_classes or 0,
  )


def parse_preprocess(
  config: ml_collections.ConfigDict, text: str
) -> ops.Preprocess:
  """Parses a preprocessing string for the config's image size and channels."""
  return ops.parse(
    text, image_size=tuple(config.image_size), channels=config.channels
  )


def stored_size(config: ml_collections.ConfigDict) -> str:
  """The size of the first training image as stored, `8x8`; `?` if corrupt."""
  source = open_source(config, config.data.dataset)
  first = data.View(source, config.data.train_split)[0]
  try:
    height, width, _ = ops.decode(first.image, config.channels).shape
  except ops.CorruptImageError:
    return '?'
  return f'{height}x{width}'


def reading(
  config: ml_collections.ConfigDict, *, train: bool
) -> dict[str, Any]:
  """The arguments that `train_batches` and `eval_batches` have in common."""
  return dict(
    num_classes=config.num_classes,
    max_labels=config.data.max_labels,
    unreadable=config.data.unreadable,
    threads=config.data.threads,
    # Not worth starting anew for each evaluation.
    workers=config.data.workers if train else 0,
    prefetch=config.data.prefetch,
  )


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
    config: resolved.
    view: the split.
    preprocess: its operations.
    num_classes: of the data set; 0: the config's.
    max_labels: an image's, at most; 0: the config's.
  """
  pipeline.check_first_record(
    view,
    preprocess,
    num_classes=num_classes or config.num_classes,
    max_labels=max_labels or config.data.max_labels,
    unreadable=config.data.unreadable,
  )
