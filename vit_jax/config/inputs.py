"""The config's data section, handed to the functions of `vit_jax.data`."""

from typing import Any

import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import ops, pipeline, splits

_MISSPELT = 'Is a folder misspelt, or not a class? Mend it'
_SORTED = (
  'Images in class folders are sorted by class: write shuffled({0}) in place of'
  ' {0} for a random part'
)


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


def settle(
  config: ml_collections.ConfigDict, source: data.Source
) -> ml_collections.ConfigDict:
  """Says what a run is measured on, where its config leaves that to the data.

  Args:
    config: whose evaluation called `config.AUTO`, if it has one, is to be on
      the split called test, validation or val, or if there is none on a random
      tenth of the training data, which is held out; not changed.
    source: the training data.

  Returns:
    A copy with that split, whose name the evaluation now has.
  """
  config = config.copy_and_resolve_references()
  if config_lib.AUTO not in config.evals:
    return config
  section = config.evals[config_lib.AUTO]
  del config.evals[config_lib.AUTO]
  trained_on = config.data.train_split
  if section.split != config_lib.AUTO:  # Given on the command line.
    config.evals[config_lib.name_of_split(section.split)] = section
    return config
  for name in ('test', 'validation', 'val'):
    if name in source.info.splits and name not in splits.names(trained_on):
      section.split = name
      logging.info('Measured on the split %r, as %s/....', name, name)
      break
  else:
    name = 'held_out'
    config.data.train_split = f'shuffled({trained_on})[:90%]'
    section.split = f'shuffled({trained_on})[90%:]'
    logging.info(
      '%s has no split called test, validation or val: a random tenth of %r is'
      ' held out of training, and measured on, as held_out/....',
      *(source.info.spec, trained_on),
    )
  config.evals[name] = section
  best = config.checkpoint.best
  if best.startswith(f'{config_lib.AUTO}/'):
    config.checkpoint.best = name + best.removeprefix(config_lib.AUTO)
  return config


def check_classes(
  config: ml_collections.ConfigDict, source: data.Source
) -> None:
  """Refuses class folders, and parts of them, that look like a mistake.

  Args:
    config: settled.
    source: the training data; only sources that know how many images each
      class has (`class_counts`), and sort them by class, are checked.

  Raises:
    ValueError: there is one class only, or a class without an image in what is
      trained or measured on, unless data.uneven_classes is 'accept' or no
      labels are learnt. Not a random part is checked, but what it is taken
      from.
  """
  choices = ('error', 'accept')
  if config.data.uneven_classes not in choices:
    raise ValueError(
      f'data.uneven_classes={config.data.uneven_classes!r} is unknown; choose'
      f' one of {list(choices)}.'
    )
  counts = getattr(source, 'class_counts', None)
  if (
    counts is None
    or config.data.uneven_classes == 'accept'
    or config.loss.name == config_lib.MASKED_PATCH
  ):
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
  advice = dict.fromkeys(
    sorted(set().union(*map(splits.names, used))), _MISSPELT
  )
  advice |= {
    part: _SORTED.format(min(splits.names(part)))
    for part in used
    if part not in advice
  }
  for part, what_to_do in advice.items():
    found = sum(
      np.bincount(source.labels(split)[start:stop], minlength=len(names))
      for split, start, stop in splits.resolve(part, source.info.splits).ranges
    )
    missing = [names[i] for i in np.flatnonzero(found == 0)]
    if missing:
      shown = ', '.join(missing[:10]) + (', ...' if missing[10:] else '')
      raise ValueError(
        f'{source.info.spec}: {len(missing)} of {len(names)} classes have no'
        f' image in {part!r}: {shown}. {what_to_do}, or pass'
        ' --config.data.uneven_classes=accept to go on with all of them.'
      )


def parse_preprocess(
  config: ml_collections.ConfigDict, text: str, dataset: str = ''
) -> ops.Preprocess:
  """Parses a preprocessing string for the config's image size and channels.

  Args:
    config: resolved.
    text: see `data/ops.py`.
    dataset: what it is for, a data spec; '' is the training data.
  """
  # Runs of before there were the keys turned none, and decoded accurately.
  upright = config.data.get('exif_orientation', False)
  if upright is None:
    upright = config_lib.is_located(dataset or config.data.dataset)
  return ops.parse(
    text,
    image_size=tuple(config.image_size),
    channels=config.channels,
    upright=upright,
    jpeg_dct=config.data.get('jpeg_dct', 'accurate'),
    max_pixels=config.data.get('max_pixels', ops.MAX_PIXELS),
  )


def stored_size(config: ml_collections.ConfigDict) -> str:
  """The size of the first training image as stored, `8x8`; `?` if corrupt."""
  source = open_source(config, config.data.dataset)
  first = data.View(source, config.data.train_split)[0]
  try:
    height, width, _ = ops.decode(
      first.image,
      config.channels,
      # Of runs from before there was the key, too.
      max_pixels=config.data.get('max_pixels', ops.MAX_PIXELS),
    ).shape
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
