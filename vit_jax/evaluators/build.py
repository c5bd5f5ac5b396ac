"""Builds evaluators from the sections of `config.evals`."""

import flax.linen as nn
import jax
import ml_collections

from vit_jax import data, sharding
from vit_jax.config import inputs
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.evaluator import Context, Evaluator
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.knn import NearestNeighbours
from vit_jax.evaluators.linear_probe import LinearProbe
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction

# Kind of an evaluation -> its evaluator, which is built from a `Context`.
KINDS = {
  'classification': Classification,
  'few_shot': FewShot,
  'knn': NearestNeighbours,
  'linear_probe': LinearProbe,
  **dict.fromkeys(('masked_patch', 'mae'), MaskedPatchPrediction),
}


def build(
  config: ml_collections.ConfigDict,
  model: nn.Module,
  mesh: jax.sharding.Mesh,
  source: data.Source,
) -> dict[str, Evaluator]:
  """Builds the evaluators of `config.evals`, by name.

  Nothing is read but one example of each view, and nothing is compiled.

  Args:
    config: a complete config.
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
      evaluated = source
      if section.label_key or section.dataset not in ('', config.data.dataset):
        evaluated = inputs.open_source(
          config,
          section.dataset or config.data.dataset,
          label_key=section.label_key,
          own_classes=section.kind != 'classification' or bool(section.classes),
        )
      preprocess = inputs.parse_preprocess(
        config, section.preprocess, section.dataset
      )
      result[name] = KINDS[section.kind](
        Context(
          *(config, section, model, mesh, source, evaluated, preprocess),
          batch_size,
        )
      )
    except ValueError as error:
      raise ValueError(f'evals.{name}: {error}') from error
  return result
