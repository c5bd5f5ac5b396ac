"""Computes the numbers of Figures 6, 7, 10, 11 and 14 for a model.

Each function takes a `subject.Subject` and returns an array for `figures` to
draw. It raises a ValueError if the model does not support the figure.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.inspection import attention_maps, capture, learned_embeddings
from vit_jax.inspection.subject import Subject
from vit_jax.models import position
from vit_jax.models.shared import normalize

# Principal components that Figure 7 shows.
_FILTERS = 28

# Function name -> names of the axes of the array that it returns.
AXES = {
  'filters': ('component', 'row', 'column', 'channel'),
  'position_similarity': ('row', 'column', 'other_row', 'other_column'),
  'rollout': ('image', 'row', 'column'),
  'attention_distance': ('block', 'head'),
}


def filters(of: Subject) -> np.ndarray:
  """Returns the first 28 components of the patch embedding, or all if fewer."""
  kernel = of.params.get('embedding', {}).get('kernel')
  if kernel is None:
    raise ValueError('the model has no patch embedding.')
  *patch, width = kernel.shape
  return learned_embeddings.filters(
    kernel, min(_FILTERS, math.prod(patch), width)
  )


def position_similarity(of: Subject, block: int | None = None) -> np.ndarray:
  """Returns cosines; see `learned_embeddings.position_similarity`."""
  grid = position.grid_of(of.model, of.image_size)
  return learned_embeddings.position_similarity(of.params, grid, block=block)


def rollout(of: Subject, images: np.ndarray) -> np.ndarray:
  """Maps images, uint8 [N, height, width, C], to [N, rows, columns]."""
  return attention_maps.rollout(_weights(of, images), **_layout(of))


def attention_distance(of: Subject, images: np.ndarray) -> np.ndarray:
  """Returns mean attention distances over images, [depth, heads] in pixels."""
  return attention_maps.mean_attention_distance(
    _weights(of, images), image_size=of.image_size, **_layout(of)
  )


def uniform_distance(of: Subject) -> float:
  """Returns the distance of uniform attention to all patches in pixels."""
  grid = of.model.token_grid(of.image_size)
  return attention_maps.uniform_distances(grid, of.image_size)[0]


def _weights(of: Subject, images: np.ndarray) -> Iterator[Any]:
  """Yields the attention weights of a few images at a time."""
  return capture.in_pieces(of.model, of.params, normalize(images))


def _layout(of: Subject) -> dict[str, Any]:
  capture.check(of.model)
  return {
    'grid': of.model.token_grid(of.image_size),
    'num_prefix_tokens': capture.prefix_tokens(of.model),
  }
