"""Computes the numbers of Figures 6, 7, 10, 11 and 14, and others, for a model.

Each function takes a `loaded.Loaded` and returns an array for `figures` to
draw. It raises a ValueError if the model does not support the figure.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from vit_jax.inspection import attention_maps, capture
from vit_jax.loaded import Loaded
from vit_jax.models import layers, position, unstack_blocks
from vit_jax.models.shared import normalize
from vit_jax.models.vit import ViT

# Principal components that Figure 7 shows.
_FILTERS = 28
# A component that varies less, beside the first one, has only rounding errors.
_NO_CONTRAST = 1e-5

# Function name -> names of the axes of the array that it returns.
AXES = {
  'filters': ('component', 'row', 'column', 'channel'),
  'position_similarity': ('row', 'column', 'other_row', 'other_column'),
  'rollout': ('image', 'row', 'column'),
  'attention_distance': ('block', 'head'),
  'patch_pca': ('image', 'row', 'column', 'component'),
  'registers': ('image', 'register', 'row', 'column'),
}


def filters(of: Loaded) -> np.ndarray:
  """Returns components of the patch embedding (Figure 7, left).

  The D filters are the observations and their P * P * C numbers the variables.
  The mean filter is subtracted. A component is a direction among patches.

  The paper does not define the scale. Here the number of largest magnitude in a
  component becomes 1 and zero becomes 0.5, so a filter ignores the patch where
  it is mid-grey. The sign of a component has no meaning; here the number of
  largest magnitude is positive.

  Returns:
    [components, P, P, C], float64 in 0..1, in order of falling variance: 28
    principal components, or all if there are fewer.

  Raises:
    ValueError: the embedding is not of RGB or grey pixels, as in hybrids.
  """
  kernel = of.params.get('embedding', {}).get('kernel')
  if kernel is None:
    raise ValueError('the model has no patch embedding.')
  kernel = np.asarray(kernel, np.float64)  # [P, P, C, D]
  if kernel.ndim != 4 or kernel.shape[2] not in (1, 3):
    raise ValueError(
      f'filters of a kernel of shape {list(kernel.shape)} cannot be shown as'
      ' images: expected [height, width, 1 or 3 channels, width of the model].'
      " A hybrid's kernel is applied to a feature map."
    )
  matrix = kernel.reshape(-1, kernel.shape[-1]).T  # [D, P * P * C]
  _, _, directions = np.linalg.svd(matrix - matrix.mean(0), full_matrices=False)
  found = directions[:_FILTERS]  # [components, P * P * C]
  largest = np.abs(found).argmax(axis=1, keepdims=True)
  found = found / np.take_along_axis(found, largest, axis=1)
  return (0.5 + found / 2).reshape(-1, *kernel.shape[:3])


def position_similarity(of: Loaded) -> np.ndarray:
  """Returns the similarity of the patches' position embeddings (Figures 7, 10).

  The class token's embedding is left out. If each block has its own position
  embeddings (position_site='every_layer'), those of the first count.

  Returns:
    [rows, columns, rows, columns], float64: cosines between the embeddings of
    two patches, one at the first two indices and one at the last two.

  Raises:
    ValueError: the model has no learned position embeddings that are added to
      the patches.
  """
  grid = position.stored_grid(of.model, of.image_size)
  patches = _position_table(of.params)[-math.prod(grid) :]  # [N, D]
  norms = np.linalg.norm(patches, axis=1, keepdims=True)
  # The cosines of a zero embedding are defined as 0.
  directions = patches / np.where(norms, norms, 1)
  return np.clip(directions @ directions.T, -1, 1).reshape(*grid, *grid)


def _position_table(params: Any) -> np.ndarray:
  """Returns [S + N, D], where S rows are of tokens before the patches."""
  holder = params.get('Transformer', {})
  if 'posembed_input' not in holder:
    if 'encoderblock' in holder:
      holder = unstack_blocks(params)['Transformer']
    holder = holder.get('encoderblock_0', {})
  tables = holder.get('posembed_input', {})
  tables = {name: np.asarray(t, np.float64) for name, t in tables.items()}
  if 'pos_embedding' in tables:
    return tables['pos_embedding'][0]
  if 'x_embedding' in tables:
    x, y = tables['x_embedding'], tables['y_embedding']
    return np.hstack([np.tile(x, (len(y), 1)), np.repeat(y, len(x), axis=0)])
  raise ValueError(
    'the model has no learned position embeddings that are added to its'
    " patches: it is a ResNet, or its position_embedding is 'none', 'sincos2d',"
    " 'relative' or 'relative_per_head'."
  )


def rollout(of: Loaded, images: np.ndarray) -> np.ndarray:
  """Maps images, uint8 [N, height, width, C], to [N, rows, columns]."""
  prefix = capture.prefix_tokens(of.model)
  how = prefix, of.model.pooling in ('token', 'token_gap')
  maps = [attention_maps.rollout(w, *how) for w in _weights(of, images)]
  grid = of.model.token_grid(of.image_size)
  return np.concatenate(maps).reshape(-1, *grid)


def registers(of: Loaded, images: np.ndarray) -> np.ndarray:
  """Returns the registers' attention to the patches (arXiv:2309.16588, §3.2).

  It is that of the last block, the mean of its heads. What a register gives to
  other tokens is left out, and the rest is not divided by its sum.

  Args:
    of: a model with registers.
    images: uint8 [N, height, width, C].

  Returns:
    [N, registers, rows, columns], float32, each map at least 0.
  """
  prefix, count = capture.prefix_tokens(of.model), of.model.registers
  maps = [  # Registers come last in the prefix.
    weights[-1, 0, :, prefix - count : prefix, prefix:].mean(axis=0)
    for weights in _weights(of, images)
  ]
  grid = of.model.token_grid(of.image_size)
  return np.stack(maps).reshape(-1, count, *grid)


def patch_pca(of: Loaded, images: np.ndarray) -> np.ndarray:
  """Returns the patches' first principal components (arXiv:2304.07193, Fig. 1).

  The patches of all images together, after the last norm, are the observations
  and their D numbers the variables; the mean is subtracted. So equal colours
  are similar patches, in all images. Differs from the authors' figure: they
  leave out the patches of the background, by a threshold of a first PCA.

  The sign of a component has no meaning; here the number of largest magnitude
  in its direction is positive. Each component is scaled on its own: its
  smallest value in any image becomes 0, its largest 1. One that does not vary
  becomes 0.5.

  Args:
    of: a ViT or hybrid.
    images: uint8 [N, height, width, C].

  Returns:
    [N, rows, columns, 3], float64 in 0..1, in order of falling variance.

  Raises:
    ValueError: the model is of another kind.
  """
  if not isinstance(of.model, ViT):
    raise ValueError('only ViTs and hybrids have patches.')
  run = jax.jit(layers.represent, static_argnums=(0, 3))
  given = of.model, jax.device_put(of.params)
  x = [run(*given, image[None], 'encoded/patches') for image in images]
  x = np.float64(np.concatenate(x))
  shape, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
  x -= x.mean(axis=0)
  _, directions = np.linalg.eigh(x.T @ x)  # By rising variance.
  directions = directions[:, :-4:-1]  # [D, 3]
  largest = np.abs(directions).argmax(axis=0)[None]
  scores = x @ (directions * np.sign(directions[largest, range(3)]))
  low, spread = scores.min(axis=0), np.ptp(scores, axis=0)
  varies = spread > _NO_CONTRAST * spread[0]
  scores = np.where(varies, (scores - low) / np.where(varies, spread, 1), 0.5)
  return scores.reshape(*shape, 3)


def attention_distance(of: Loaded, images: np.ndarray) -> np.ndarray:
  """Returns mean attention distances over images, [depth, heads] in pixels."""
  prefix, total = capture.prefix_tokens(of.model), 0.0
  grid = of.model.token_grid(of.image_size)
  apart = attention_maps.patch_distances(grid, of.image_size)
  for weights in _weights(of, images):
    found = attention_maps.sum_distances(weights, np.float32(apart), prefix)
    total = total + np.asarray(found, np.float64)
  return total / len(images)


def _weights(of: Loaded, images: np.ndarray) -> Iterator[jax.Array]:
  """Yields the weights [depth, 1, H, L, L] of each image.

  Those of all images would not fit the memory: ViT-H/14 has 3.8 GB of them for
  an image of 518 px.
  """
  params = jax.device_put(of.params)
  for image in images:
    yield capture.attention_weights(of.model, params, normalize(image[None]))
