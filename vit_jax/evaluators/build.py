"""Builds evaluators from the sections of `config.evals`."""

import flax.linen as nn
import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data, masked_patch, sharding
from vit_jax.config import inputs
from vit_jax.evaluators import (
  classes,
  classification,
  fewshot,
  knn,
  linear_probe,
  predictions,
)
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.evaluator import Evaluator
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.knn import NearestNeighbours
from vit_jax.evaluators.linear_probe import LinearProbe
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
    config: a resolved config.
    model: see `models.build`.
    mesh: the devices to use.
    source: the training data, which evaluations read by default.

  Raises:
    ValueError: a data spec, split, op or batch size is wrong, or the classes of
      a data set differ from the model's where they must not.
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
  """Builds an evaluation by the training loss without label smoothing."""
  section = config.evals[name]
  if config.loss.name == config_lib.MASKED_PATCH:
    raise ValueError(
      f'evals.{name} needs a classifier, but a run with'
      f' loss.name={config_lib.MASKED_PATCH!r} has none. Use evals of the'
      " kinds 'masked_patch' and 'few_shot'."
    )
  # Older configs have no such key.
  save_predictions = section.get('save_predictions', False)
  if save_predictions:
    predictions.check_pyarrow(f'evals.{name}.save_predictions')
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
      'evals.%s: predictions are restricted to %d classes.',
      *(name, len(candidates)),
    )
  return Classification(
    view,
    preprocess,
    model,
    losses.build(config.loss.name),
    mesh,
    batch_size=batch_size,
    reading=inputs.reading(config) | {'max_labels': max_labels},
    confidence=classification.CONFIDENCES[config.loss.name],
    candidates=candidates,
    save_predictions=save_predictions,
  )


def _tell_if_trained_on(
  name: str,
  split: str,
  config: ml_collections.ConfigDict,
  source: data.Source,
) -> None:
  """Warns if an evaluation uses examples of the training split."""
  view = data.View(source, split)
  shared = view.shared(data.View(source, config.data.train_split))
  if shared and jax.process_index() == 0:
    logging.warning(
      'evals.%s: up to %d of its %d examples are also training examples'
      ' (data.train_split=%r), so it does not measure generalization.',
      *(name, shared, len(view), config.data.train_split),
    )


def _open(
  config: ml_collections.ConfigDict,
  section: ml_collections.ConfigDict,
  source: data.Source,
  *,
  own_classes: bool,
) -> data.Source:
  """Opens the data set of a section; returns `source` if it is the same."""
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
  """Returns the view with the model's classes, and the most per image."""
  if view.source.info.multi_label:
    raise ValueError(
      f'evals.{name}.classes={how!r} needs one label per image, but'
      f' {view.source.info.spec!r} has several. Leave `classes` empty.'
    )
  found = view.source.info.class_names
  try:
    table = classes.table(how, found, trained_on.class_names)
  except ValueError as error:
    raise ValueError(f'evals.{name}.classes: {error}') from error
  logging.info(
    'evals.%s: the model knows %d of the %d classes of %r.',
    *(name, sum(map(bool, table)), len(table), view.source.info.spec),
  )
  return classes.Relabelled(view, table), max(map(len, table))


def _occurring(view) -> list[int]:
  """Returns the classes that occur in a view, ascending."""
  labels = data.read_labels(view)
  if not isinstance(labels, np.ndarray):
    labels = np.concatenate([np.asarray(label, np.int64) for label in labels])
  return np.unique(labels).tolist()


def _of_features(
  name: str,
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
  batch_size: int,
) -> FewShot | NearestNeighbours | LinearProbe:
  """Builds an evaluation of features, with the classes of its data set."""
  section = config.evals[name]
  evaluated = _open(config, section, source, own_classes=True)
  views = {
    use: data.View(evaluated, section[key])
    for use, key in (
      *(('train', 'train_split'), ('test', 'split')),
      ('selection', 'selection_split'),
    )
    if section.get(key)
  }
  preprocess = inputs.parse_preprocess(
    config, section.preprocess, section.dataset
  )
  options = dict(
    batch_size=batch_size,
    reading=inputs.reading(config),
    name=name,
  )
  train, test, selection = map(views.get, ('train', 'test', 'selection'))
  shared = (preprocess, model, mesh)
  try:
    for view in views.values():
      inputs.check_first_record(
        config, view, preprocess, num_classes=evaluated.info.num_classes
      )
    if section.kind == 'few_shot':
      protocol = fewshot.protocol(section.shots, section.seeds, section.l2)
      return FewShot(train, test, selection, *shared, protocol, **options)
    options['layer'] = section.layer
    if section.kind == 'knn':
      protocol = knn.Protocol(
        section.k, section.metric, section.weights, section.temperature
      )
      return NearestNeighbours(train, test, *shared, protocol, **options)
    protocol = linear_probe.Protocol(section.l2, section.max_steps)
    return LinearProbe(train, test, selection, *shared, protocol, **options)
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
  """Builds an evaluation of masked patches; the images may have any classes."""
  section = config.evals[name]
  if config.loss.name != config_lib.MASKED_PATCH:
    raise ValueError(
      f'evals.{name} is for runs with loss.name={config_lib.MASKED_PATCH!r},'
      f' but loss.name={config.loss.name!r}.'
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
    reading=inputs.reading(config) | labels,
  )


KINDS = {
  'classification': _classification,
  **dict.fromkeys(config_lib.FEATURES, _of_features),
  'masked_patch': _masked_patch,
}


def _check_classes(
  name: str, info: data.SourceInfo, trained_on: data.SourceInfo
) -> None:
  """Raises ValueError unless class i is the same in both data sets."""
  if info.num_classes != trained_on.num_classes:
    raise ValueError(
      f'evals.{name}: {info.spec!r} has {info.num_classes} classes, but the'
      f' training data {trained_on.spec!r} has {trained_on.num_classes}.'
      f' Set evals.{name}.classes to map them.'
    )
  pairs = zip(info.class_names, trained_on.class_names, strict=True)
  for index, (here, there) in enumerate(pairs):
    if here != there:
      raise ValueError(
        f'evals.{name}: class {index} is {here!r} in {info.spec!r}, but'
        f' {there!r} in the training data {trained_on.spec!r}.'
        f' Set evals.{name}.classes to map them.'
      )
