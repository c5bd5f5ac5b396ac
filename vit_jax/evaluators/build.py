"""Builds evaluators from the sections of `config.evals`."""

import dataclasses

import flax.linen as nn
import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import config as config_lib
from vit_jax import data, masked_patch, sharding
from vit_jax.config import inputs
from vit_jax.data import ops, pipeline
from vit_jax.evaluators import classes, evaluator, predictions
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.evaluator import Batches, Evaluator
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.frozen import FrozenFeatures
from vit_jax.evaluators.knn import NearestNeighbours
from vit_jax.evaluators.linear_probe import LinearProbe
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction
from vit_jax.runtime import distributed


@dataclasses.dataclass(frozen=True)
class Context:
  """What an evaluator is built from.

  Attributes:
    config: the resolved config of the run.
    section: the evaluation's section of it.
    model: see `models.build`.
    mesh: the devices to use.
    trained_on: the training data.
    source: the data of the evaluation; the same object if it is the same.
    preprocess: see `data/ops`.
    batch_size: global batch size.
  """

  config: ml_collections.ConfigDict
  section: ml_collections.ConfigDict
  model: nn.Module
  mesh: jax.sharding.Mesh
  trained_on: data.Source
  source: data.Source
  preprocess: ops.Preprocess
  batch_size: int

  def batches(self, *views: data.View, **labels: int) -> Batches:
    """Decodes one example of each view, and returns how to read them all.

    Args:
      *views: what will be read.
      **labels: num_classes and max_labels, where they are not the config's.
    """
    reading = inputs.reading(self.config) | labels
    for view in views:
      pipeline.check_first_record(view, self.preprocess, **reading)
    return evaluator.batches(
      self.preprocess, self.mesh, batch_size=self.batch_size, **reading
    )


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
    batch_size = section.batch_size or config.data.batch_size
    sharding.check_batch_size(f'evals.{name}.batch_size', batch_size, mesh)
    try:
      if section.kind not in KINDS:
        raise ValueError(
          f'kind={section.kind!r} is unknown; choose one of {list(KINDS)}.'
        )
      evaluated = _open(config, section, source)
      preprocess = inputs.parse_preprocess(
        config, section.preprocess, section.dataset
      )
      context = Context(
        *(config, section, model, mesh, source, evaluated, preprocess),
        batch_size,
      )
      result[name] = KINDS[section.kind](context)
    except ValueError as error:
      raise ValueError(f'evals.{name}: {error}') from error
  return result


def _open(
  config: ml_collections.ConfigDict,
  section: ml_collections.ConfigDict,
  source: data.Source,
) -> data.Source:
  """Opens the data set of a section; returns `source` if it is the same."""
  if section.dataset in ('', config.data.dataset) and not section.label_key:
    return source
  return inputs.open_source(
    config,
    section.dataset or config.data.dataset,
    label_key=section.label_key,
    own_classes=section.kind != 'classification' or bool(section.classes),
  )


def _classification(given: Context) -> Classification:
  """Builds an evaluation by the training loss without label smoothing."""
  config, section, source = given.config, given.section, given.source
  if config.loss.name == config_lib.MASKED_PATCH:
    raise ValueError(
      'it needs a classifier, but a run with'
      f' loss.name={config_lib.MASKED_PATCH!r} has none. Use evals of the'
      " kinds 'masked_patch' and 'few_shot'."
    )
  # Older configs have no such key.
  save_predictions = section.get('save_predictions', False)
  if save_predictions:
    predictions.check_pyarrow('save_predictions')
  view = data.View(source, section.split)
  max_labels = section.max_labels or config.data.max_labels
  if section.classes:
    view, max_labels = _relabelled(section.classes, view, given.trained_on.info)
  elif source is not given.trained_on:
    _check_classes(source.info, given.trained_on.info)
  else:
    _tell_if_trained_on(view, config.data.train_split)
  candidates = None
  if section.restrict:
    candidates = distributed.broadcast(
      _occurring(view) if jax.process_index() == 0 else None
    )
    logging.info('Predictions are restricted to %d classes.', len(candidates))
  return Classification(
    view,
    given.batches(view, max_labels=max_labels),
    given.model,
    config.loss.name,
    given.mesh,
    num_classes=config.num_classes,
    candidates=candidates,
    save_predictions=save_predictions,
  )


def _of_features(given: Context) -> FrozenFeatures:
  """Builds an evaluation of features, with the classes of its data set."""
  section = given.section
  if section.kind == 'few_shot':
    classifier = FewShot(section.shots, section.seeds, section.l2)
  elif section.kind == 'knn':
    classifier = NearestNeighbours(
      section.k, section.metric, section.weights, section.temperature
    )
  else:
    classifier = LinearProbe(section.l2, section.max_steps)
  keys = {'train': 'train_split', 'test': 'split'}
  if section.get('selection_split'):
    keys['selection'] = 'selection_split'
  views = {
    use: data.View(given.source, section[key]) for use, key in keys.items()
  }
  # Few-shot evaluations have no choice of the layer.
  layer = {'layer': section.layer} if 'layer' in section else {}
  batches = given.batches(
    *views.values(), num_classes=given.source.info.num_classes
  )
  return FrozenFeatures(
    views, classifier, batches, given.model, given.mesh, **layer
  )


def _masked_patch(given: Context) -> MaskedPatchPrediction:
  """Builds an evaluation of masked patches; the images may have any classes."""
  config, section = given.config, given.section
  if config.loss.name != config_lib.MASKED_PATCH:
    raise ValueError(
      f'it is for runs with loss.name={config_lib.MASKED_PATCH!r}, but'
      f' loss.name={config.loss.name!r}.'
    )
  view = data.View(given.source, section.split)
  batches = given.batches(
    view,
    num_classes=given.source.info.num_classes,
    max_labels=section.max_labels or config.data.max_labels,
  )
  return MaskedPatchPrediction(
    view,
    batches,
    given.model,
    masked_patch.from_config(config, given.model),
    given.mesh,
  )


# Kind of an evaluation -> function that builds it.
KINDS = {
  'classification': _classification,
  **dict.fromkeys(config_lib.FEATURES, _of_features),
  'masked_patch': _masked_patch,
}


def _relabelled(
  how: str, view: data.View, trained_on: data.SourceInfo
) -> tuple[classes.Relabelled, int]:
  """Returns the view with the model's classes, and the most per image."""
  info = view.source.info
  if info.multi_label:
    raise ValueError(
      f'classes={how!r} needs one label per image, but {info.spec!r} has'
      ' several. Leave `classes` empty.'
    )
  table = classes.table(how, info.class_names, trained_on.class_names)
  logging.info(
    'The model knows %d of the %d classes of %r.',
    *(sum(map(bool, table)), len(table), info.spec),
  )
  return classes.Relabelled(view, table), max(map(len, table))


def _occurring(view: data.View) -> list[int]:
  """Returns the classes that occur in a view, ascending."""
  labels = data.read_labels(view)
  if not isinstance(labels, np.ndarray):
    labels = np.concatenate([np.asarray(label, np.int64) for label in labels])
  return np.unique(labels).tolist()


def _tell_if_trained_on(view: data.View, train_split: str) -> None:
  """Warns if an evaluation uses examples of the training split."""
  shared = view.shared(data.View(view.source, train_split))
  if shared and jax.process_index() == 0:
    logging.warning(
      'Up to %d of the %d examples of %r are also training examples'
      ' (data.train_split=%r), so it does not measure generalization.',
      *(shared, len(view), view.split, train_split),
    )


def _check_classes(info: data.SourceInfo, trained_on: data.SourceInfo) -> None:
  """Raises ValueError unless class i is the same in both data sets."""
  remedy = 'Set `classes` to map them.'
  if info.num_classes != trained_on.num_classes:
    raise ValueError(
      f'{info.spec!r} has {info.num_classes} classes, but the training data'
      f' {trained_on.spec!r} has {trained_on.num_classes}. {remedy}'
    )
  pairs = zip(info.class_names, trained_on.class_names, strict=True)
  for index, (here, there) in enumerate(pairs):
    if here != there:
      raise ValueError(
        f'class {index} is {here!r} in {info.spec!r}, but {there!r} in the'
        f' training data {trained_on.spec!r}. {remedy}'
      )
