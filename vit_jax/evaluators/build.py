"""Builds evaluators from the sections of `config.evals`."""

import flax.linen as nn
import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data, masked_patch, sharding
from vit_jax.config import inputs
from vit_jax.evaluators import classes, classification, fewshot
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.evaluator import Evaluator
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction
from vit_jax.runtime import distributed
from vit_jax.training import losses


def build(
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
) -> dict[str, Evaluator]:
  """Builds the evaluators of `config.evals`, by name.

  Args:
    config: resolved.
    model: see `models.build`.
    mesh: the devices to use.
    source: the training data, which evaluations read by default.

  Raises:
    ValueError: a wrong data spec, split, op or batch size, or a data set with
      other classes than the one trained on where they must be the same.
  """
  result = {}
  for name, section in config.evals.items():
    if section.kind not in KINDS:
      raise ValueError(
        f'evals.{name}.kind={section.kind!r} is unknown; choose one of'
        f' {list(KINDS)}.'
      )
    batch_size = section.batch_size or config.data.batch_size
    sharding.check_batch_size(f'evals.{name}.batch_size', batch_size, mesh)
    result[name] = KINDS[section.kind](
      name, config, model, mesh, source, batch_size
    )
  return result


def _classification(
  name: str,
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
  batch_size: int,
) -> Classification:
  """The loss is the training loss without label smoothing."""
  section = config.evals[name]
  if config.loss.name == config_lib.MASKED_PATCH:
    raise ValueError(
      f'evals.{name} needs a classifier, and a run with'
      f' loss.name={config_lib.MASKED_PATCH!r} has none. Its evals are of'
      " the kinds 'masked_patch' and 'few_shot'."
    )
  evaluated = _open(config, section, source, own_classes=bool(section.classes))
  if evaluated is not source and not section.classes:
    _check_classes(name, evaluated.info, source.info)
  view = data.View(evaluated, section.split)
  preprocess = inputs.parse_preprocess(
    config, section.preprocess, section.dataset
  )
  max_labels = section.max_labels or config.data.max_labels
  if section.classes:
    view, max_labels = _relabelled(name, section.classes, view, source.info)
  inputs.check_first_record(config, view, preprocess, max_labels=max_labels)
  if evaluated is source:
    _tell_if_trained_on(name, section.split, config, source)
  candidates = None
  if section.restrict:
    candidates = distributed.broadcast(
      _occurring(view) if jax.process_index() == 0 else None
    )
    logging.info(
      'evals.%s: predictions are among %d classes.', name, len(candidates)
    )
  return Classification(
    view,
    preprocess,
    model,
    losses.build(config.loss.name),
    mesh,
    batch_size=batch_size,
    reading=inputs.reading(config, train=False) | {'max_labels': max_labels},
    confidence=classification.CONFIDENCES[config.loss.name],
    candidates=candidates,
  )


def _tell_if_trained_on(
  name: str,
  split: str,
  config: ml_collections.ConfigDict,
  source: data.Source,
) -> None:
  """Warns of an evaluation that has examples of the training split."""
  view = data.View(source, split)
  shared = view.shared(data.View(source, config.data.train_split))
  if shared and jax.process_index() == 0:
    logging.warning(
      'evals.%s: up to %d of its %d examples are trained on, too (data.train_'
      'split=%r), so it does not tell how the model does on others.',
      *(name, shared, len(view), config.data.train_split),
    )


def _open(
  config: ml_collections.ConfigDict,
  section: ml_collections.ConfigDict,
  source: data.Source,
  *,
  own_classes: bool,
) -> data.Source:
  """What a section reads: the training data `source`, or something else."""
  if section.dataset in ('', config.data.dataset) and not section.label_key:
    return source
  return inputs.open_source(
    config,
    section.dataset or config.data.dataset,
    label_key=section.label_key,
    own_classes=own_classes,
  )


def _relabelled(
  name: str, how: str, view: data.View, trained_on: data.SourceInfo
) -> tuple[classes.Relabelled, int]:
  """The view with the model's classes, and how many an image has at most."""
  if view.source.info.multi_label:
    raise ValueError(
      f'evals.{name}.classes={how!r} is for one label an image, and'
      f' {view.source.info.spec!r} has several.'
    )
  found = view.source.info.class_names
  try:
    table = classes.table(how, found, trained_on.class_names)
  except ValueError as error:
    raise ValueError(f'evals.{name}.classes: {error}') from error
  logging.info(
    "evals.%s: %d of the %d classes of %r are the model's.",
    *(name, sum(map(bool, table)), len(table), view.source.info.spec),
  )
  return classes.Relabelled(view, table), max(map(len, table))


def _occurring(view) -> list[int]:
  """The classes of a view's records."""
  labels = data.read_labels(view)
  if not isinstance(labels, np.ndarray):
    labels = np.concatenate([np.asarray(label, np.int64) for label in labels])
  return np.unique(labels).tolist()


def _few_shot(
  name: str,
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
  batch_size: int,
) -> FewShot:
  """Its classes are its data set's own."""
  section = config.evals[name]
  evaluated = _open(config, section, source, own_classes=True)
  train, test = (
    data.View(evaluated, split)
    for split in (section.train_split, section.split)
  )
  selection = None
  if section.selection_split:
    selection = data.View(evaluated, section.selection_split)
  preprocess = inputs.parse_preprocess(
    config, section.preprocess, section.dataset
  )
  try:
    for view in filter(None, (train, test, selection)):
      inputs.check_first_record(
        config, view, preprocess, num_classes=evaluated.info.num_classes
      )
    return FewShot(
      train,
      test,
      selection,
      preprocess,
      model,
      mesh,
      fewshot.protocol(section.shots, section.seeds, section.l2),
      batch_size=batch_size,
      reading=inputs.reading(config, train=False),
    )
  except ValueError as error:
    raise ValueError(f'evals.{name}: {error}') from error


def _masked_patch(
  name: str,
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
  batch_size: int,
) -> MaskedPatchPrediction:
  """Of any images, whatever their classes."""
  section = config.evals[name]
  if config.loss.name != config_lib.MASKED_PATCH:
    raise ValueError(
      f'evals.{name} is for runs with loss.name={config_lib.MASKED_PATCH!r},'
      f" and this one's is {config.loss.name!r}."
    )
  evaluated = _open(config, section, source, own_classes=True)
  view = data.View(evaluated, section.split)
  preprocess = inputs.parse_preprocess(
    config, section.preprocess, section.dataset
  )
  labels = {
    'num_classes': evaluated.info.num_classes,
    'max_labels': section.max_labels or config.data.max_labels,
  }
  inputs.check_first_record(config, view, preprocess, **labels)
  return MaskedPatchPrediction(
    view,
    preprocess,
    model,
    masked_patch.from_config(config, model),
    mesh,
    batch_size=batch_size,
    reading=inputs.reading(config, train=False) | labels,
  )


KINDS = {
  'classification': _classification,
  'few_shot': _few_shot,
  'masked_patch': _masked_patch,
}


def _check_classes(
  name: str, info: data.SourceInfo, trained_on: data.SourceInfo
) -> None:
  """Raises ValueError unless class i is the same in both data sets."""
  if info.num_classes != trained_on.num_classes:
    raise ValueError(
      f'evals.{name}: {info.spec!r} has {info.num_classes} classes,'
      f' {trained_on.spec!r}, which the model is trained on,'
      f' {trained_on.num_classes}.'
    )
  pairs = zip(info.class_names, trained_on.class_names, strict=True)
  for index, (here, there) in enumerate(pairs):
    if here != there:
      raise ValueError(
        f'evals.{name}: class {index} is {here!r} in {info.spec!r}, but'
        f' {there!r} in {trained_on.spec!r}, which the model is trained on.'
      )
