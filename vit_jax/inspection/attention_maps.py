"""Where attention looks: rollout (§D.8) and mean distance (§D.7).

Axes: B images, H heads, L tokens, N = rows * columns patches. The first L - N
tokens are the prefix: a class token or nothing.
"""

import functools
import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

# One array [depth, B, H, L, L], or an iterable of them for different images.
Pieces = jax.Array | np.ndarray | Iterable[jax.Array | np.ndarray]


def rollout(
  weights: Pieces, *, num_prefix_tokens: int, grid: tuple[int, int]
) -> np.ndarray:
  """Returns how much of the output comes from each patch (Figures 6 and 14).

  Attention rollout (Abnar and Zuidema, arXiv:2005.00928), §D.8: the weights of
  a block are averaged over heads, the identity is added for the residual
  connection, and rows are divided by their sums. The matrices of all blocks are
  multiplied, with the last block on the left. The result is the class token's
  row.

  The paper does not define rollout for models without a class token. Here the
  result is the mean over the rows of all patches, because pooling='gap'
  classifies the mean of the patches. Attention pooling is not taken into
  account.

  Args:
    weights: [depth, B, H, L, L], or an iterable of such arrays.
    num_prefix_tokens: 1 with a class token, else 0.
    grid: (rows, columns) of the patches.

  Returns:
    [B, rows, columns], float32, with the images of all arrays. Each map sums to
    1 minus the share of the class token.

  Raises:
    ValueError: L is not num_prefix_tokens + rows * columns.
  """
  maps = [
    np.asarray(rollout_rows(piece, num_prefix_tokens))
    for piece in _pieces(weights, num_prefix_tokens, grid)
  ]
  return np.concatenate(maps).reshape(-1, *grid)


@functools.partial(jax.jit, static_argnums=1)
def rollout_rows(weights: jax.Array, num_prefix_tokens: int) -> jax.Array:
  """Returns the rollout of weights [depth, B, H, L, L], float32 [B, N]."""
  mixed = weights.mean(axis=2) + jnp.eye(weights.shape[-1])  # [depth, B, L, L]
  mixed /= mixed.sum(axis=-1, keepdims=True)
  queries = slice(0, 1) if num_prefix_tokens else slice(None)
  # Multiplying only the needed rows is cheaper than whole matrices.
  rows = mixed[-1, :, queries]  # [B, 1 or L, L]
  for block in mixed[-2::-1]:
    rows = jnp.matmul(rows, block, precision='highest')
  return rows.mean(axis=1)[:, num_prefix_tokens:]


def mean_attention_distance(
  weights: Pieces,
  *,
  grid: tuple[int, int],
  num_prefix_tokens: int,
  image_size: tuple[int, int],
) -> np.ndarray:
  """Returns how far each head looks (Figures 7 right and 11).

  §D.7 and the authors' procedure: a patch's distances to all patches are summed
  with its attention as weights. The sums are averaged over the patches, then
  over the images. The class token's row and column are left out, and the rest
  of a row is not divided by its sum. Uniform attention gives 116.5 px for 14x14
  patches of a 224 px image, and 115.5 px for 7x7.

  Args:
    weights: [depth, B, H, L, L], or an iterable of such arrays.
    grid: (rows, columns) of the patches.
    num_prefix_tokens: 1 with a class token, else 0.
    image_size: (height, width) in pixels that the patches cover. Divided by the
      grid, it gives the size of a patch, also in hybrids, whose patches are of
      feature maps.

  Returns:
    [depth, H], float64, in pixels.

  Raises:
    ValueError: L is not num_prefix_tokens + rows * columns.
  """
  apart = patch_distances(grid, image_size).astype(np.float32)
  total, count = 0.0, 0
  for piece in _pieces(weights, num_prefix_tokens, grid):
    found = _sum_distances(piece, apart, num_prefix_tokens)
    total, count = total + np.asarray(found, np.float64), count + piece.shape[1]
  return total / count


@functools.partial(jax.jit, static_argnums=2)
def _sum_distances(
  weights: jax.Array, apart: jax.Array, num_prefix_tokens: int
) -> jax.Array:
  """Averages over the query patches and sums over the images: [depth, H]."""
  patches = weights[..., num_prefix_tokens:, num_prefix_tokens:]
  distances = (patches * apart).sum(axis=-1)  # [depth, B, H, N]
  return distances.mean(axis=-1).sum(axis=1)


def patch_distances(
  grid: tuple[int, int], image_size: tuple[int, int]
) -> np.ndarray:
  """Returns the distances between patches, [N, N], float64 in pixels."""
  places = np.indices(grid).reshape(2, -1).T  # [N, 2]: row and column
  places = places * (np.asarray(image_size) / grid)
  return np.linalg.norm(places[:, None] - places[None], axis=-1)


def _pieces(
  weights: Pieces, num_prefix_tokens: int, grid: tuple[int, int]
) -> Iterable[jax.Array]:
  """Yields the arrays after a check of their shapes."""
  length = num_prefix_tokens + math.prod(grid)
  for piece in [weights] if hasattr(weights, 'ndim') else weights:
    if piece.shape[-1] != length:
      raise ValueError(
        f'the weights have shape {list(piece.shape)}; {num_prefix_tokens}'
        f' prefix tokens and a grid of {grid[0]}x{grid[1]} need [depth, images,'
        f' heads, {length}, {length}].'
      )
    yield jnp.asarray(piece)


def uniform_distances(
  grid: tuple[int, int], image_size: tuple[int, int]
) -> tuple[float, float]:
  """Returns the mean distance in pixels of uniform attention to the patches.

  The first number is for all patches, the second one for the nearest half.
  """
  apart = np.sort(patch_distances(grid, image_size), axis=1)
  half = max(1, len(apart) // 2)
  return float(apart.mean()), float(apart[:, :half].mean())
