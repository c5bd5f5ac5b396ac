"""Evaluators: `run(state)` yields `(name, value)` pairs."""

from typing import Any

import flax.linen as nn
import jax
import ml_collections

from vit_jax import data, losses, sharding
from vit_jax.data import ops
from vit_jax.evaluators.classification import Classification


def open_source(config: ml_collections.ConfigDict, dataset: str) -> data.Source:
  """Opens a data spec with the options of the config's `data` section."""
  return data.open_source(
    dataset,
    data_dir=config.data.data_dir,
    image_key=config.data.image_key,
    label_key=config.data.label_key,
  )


def reading(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """The arguments that `train_batches` and `eval_batches` have in common."""
  return dict(
    num_classes=config.num_classes,
    max_labels=config.data.max_labels,
    unreadable=config.data.unreadable,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
    threads=config.data.threads,
    workers=config.data.workers,
    prefetch=config.data.prefetch,
  )


def build(
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
) -> dict[str, Classification]:
  """Builds the evaluators of `config.evals`, by name.

  The loss is the training loss without label smoothing.

  Raises:
    ValueError: a wrong data spec, split, op or batch size, or a data set with
      another number of classes than the model.
  """
  result = {}
  for name, section in config.evals.items():
    dataset = section.dataset or config.data.dataset
    source = open_source(config, dataset)
    if source.info.num_classes != config.num_classes:
      raise ValueError(
        f'evals.{name}: {dataset!r} has {source.info.num_classes} classes,'
        f' the model {config.num_classes} (from {config.data.dataset!r}).'
      )
    batch_size = section.batch_size or config.data.batch_size
    sharding.check_batch_size(f'evals.{name}.batch_size', batch_size, mesh)
    result[name] = Classification(
      data.View(source, section.split),
      ops.parse(
        section.preprocess,
        image_size=tuple(config.image_size),
        channels=config.channels,
      ),
      model,
      losses.build(config.loss.name),
      mesh,
      batch_size=batch_size,
      reading=reading(config),
    )
  return result


def is_due(section: ml_collections.ConfigDict, step: int) -> bool:
  """Whether an evaluation falls on this step (the last one apart)."""
  return section.every > 0 and step % section.every == 0
