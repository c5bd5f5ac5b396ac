"""Analysis of trained models: attention and embeddings (§4.5, D.7, D.8).

    weights = inspect.in_pieces(model, params, images)
    inspect.mean_attention_distance(
      weights, grid=(14, 14), num_prefix_tokens=1, image_size=(224, 224)
    )

`python -m vit_jax.inspect` draws Figures 6, 7, 10, 11 and 14 of the paper for
any checkpoint and images; `figures` has the functions that draw.
"""

from vit_jax.inspection.attention_maps import mean_attention_distance, rollout
from vit_jax.inspection.capture import (
  attention_weights,
  in_pieces,
  prefix_tokens,
)
from vit_jax.inspection.learned_embeddings import filters, position_similarity

__all__ = [
  'attention_weights',
  'filters',
  'in_pieces',
  'mean_attention_distance',
  'position_similarity',
  'prefix_tokens',
  'rollout',
]
