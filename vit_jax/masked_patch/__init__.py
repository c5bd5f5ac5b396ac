"""Masked patch prediction, the paper's self-supervision (§4.6, B.1.2).

The task corrupts some patch embeddings, and the model predicts the original
colours of those patches.
"""

from vit_jax.masked_patch.objective import (
  add_image_keys,
  each_step,
  mean_loss,
  measure,
)
from vit_jax.masked_patch.task import (
  Corruption,
  MaskedPatch,
  adapted,
  build,
  corruption_key,
  from_config,
)

__all__ = [
  'Corruption',
  'MaskedPatch',
  'adapted',
  'add_image_keys',
  'build',
  'corruption_key',
  'each_step',
  'from_config',
  'mean_loss',
  'measure',
]
