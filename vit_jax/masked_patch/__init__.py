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
from vit_jax.masked_patch.task import build, corruption_key

__all__ = [
  'add_image_keys',
  'build',
  'corruption_key',
  'each_step',
  'mean_loss',
  'measure',
]
