"""Evaluators: `run(state)` yields `(name, value)` pairs."""

import flax.linen as nn
import jax
import ml_collections

from vit_jax import data, inputs, losses, sharding
from vit_jax.evaluators.classification import Classification


def build(
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
) -> dict[str, Classification]:
  """Builds the evaluators of `config.evals`, by name.

  The loss is the training loss without label smoothing.

  Args:
    config: resolved.
    model: see `models.build`.
    mesh: the devices to use.
    source: the training data, which evaluations read by default.

  Raises:
    ValueError: a wrong data spec, split, op or batch size, or a data set with
      other classes than the one trained on.
  """
  result = {}
  for name, section in config.evals.items():
    evaluated = source
    if section.dataset not in ('', config.data.dataset):
      evaluated = inputs.open_source(config, section.dataset)
      _check_classes(name, evaluated.info, source.info)
    batch_size = section.batch_size or config.data.batch_size
    sharding.check_batch_size(f'evals.{name}.batch_size', batch_size, mesh)
    view = data.View(evaluated, section.split)
    preprocess = inputs.parse_preprocess(config, section.preprocess)
    inputs.check_first_record(config, view, preprocess)
    result[name] = Classification(
      view,
      preprocess,
      model,
      losses.build(config.loss.name),
      mesh,
      batch_size=batch_size,
      reading=inputs.reading(config, train=False),
    )
  return result


def is_due(section: ml_collections.ConfigDict, step: int) -> bool:
  """Whether an evaluation falls on this step (the last one apart)."""
  return section.every > 0 and step % section.every == 0


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
