"""What a step minimises: losses of a classifier, the prediction of patches.

A loss that is a function of logits and labels (`LOSSES`: softmax, sigmoid)
trains by `classification.make_objective`. Any other has an entry of its own in
`OBJECTIVES`. If a name is in both, `OBJECTIVES` is used to train, and `LOSSES`
to evaluate.
"""

from collections.abc import Callable

import flax.linen as nn
import ml_collections

from vit_jax import sharding
from vit_jax.config import PATCH_LOSSES
from vit_jax.losses import classification, flexi, masked_patch
from vit_jax.losses.classification import LOSSES as LOSSES
from vit_jax.losses.classification import Loss as Loss
from vit_jax.losses.classification import build as build
from vit_jax.losses.classification import correct as correct
from vit_jax.losses.classification import multi_hot as multi_hot
from vit_jax.losses.objective import Objective as Objective

# The config's `loss.name` -> `(config, model, layout) -> Objective`.
OBJECTIVES: dict[str, Callable[..., Objective]] = dict.fromkeys(
  PATCH_LOSSES, masked_patch.make_objective
)


def build_objective(
  config: ml_collections.ConfigDict, model: nn.Module, layout: sharding.Layout
) -> Objective:
  """Builds what a run minimises.

  Args:
    config: complete.
    model: the config's model, see `models.build`.
    layout: how the batch is split.

  Raises:
    ValueError: the section `loss` does not suit the model or other keys.
  """
  if config.loss.name in OBJECTIVES:
    learnt = f'loss.name={config.loss.name!r}'
    if config.flexi.patch_sizes:
      raise ValueError(f'flexi.patch_sizes is not for {learnt}: set ().')
    if config.distill.teacher != '':
      raise ValueError(
        f'distill.teacher={config.distill.teacher!r} tells classes, which'
        f' {learnt} does not learn: leave out one of both.'
      )
  make = OBJECTIVES.get(config.loss.name, classification.make_objective)
  objective = make(config, model, layout)
  return objective._replace(
    prepare_batch=flexi.with_draw(config, objective.prepare_batch)
  )
