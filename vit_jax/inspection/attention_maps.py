"""Where attention looks: rollout (§D.8) and mean distance (§D.7).

Axes: B images, H heads, L tokens, N = rows * columns patches. The first L - N
tokens are the prefix: nothing, or a class token, registers and so on.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnums=(1, 2))
def rollout(
  weights: jax.Array, num_prefix_tokens: int, of_token: bool = True
) -> jax.Array:
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
    weights: [depth, B, H, L, L].
    num_prefix_tokens: L - N.
    of_token: whether the class token, if there is one, is what is classified.

  Returns:
    [B, N], float32. Each row sums to 1 minus the share of the prefix.
  """
  mixed = weights.mean(axis=2) + jnp.eye(weights.shape[-1])  # [depth, B, L, L]
  mixed /= mixed.sum(axis=-1, keepdims=True)
  of_token &= num_prefix_tokens > 0
  queries = slice(0, 1) if of_token else slice(num_prefix_tokens, None)
  # Multiplying only the needed rows is cheaper than whole matrices.
  rows = mixed[-1, :, queries]  # [B, 1 or L, L]
  for block in mixed[-2::-1]:
    rows = jnp.matmul(rows, block, precision='highest')
  return rows.mean(axis=1)[:, num_prefix_tokens:]


@functools.partial(jax.jit, static_argnums=2)
def sum_distances(
  weights: jax.Array, apart: jax.Array, num_prefix_tokens: int
) -> jax.Array:
  """Returns how far each head looks, summed over images (Figures 7 and 11).

  §D.7 and the authors' procedure: a patch's distances to all patches are summed
  with its attention as weights, and averaged over the patches. The prefix's
  rows and columns are left out, and the rest of a row is not divided by
  its sum. Uniform attention gives 116.5 px for 14x14 patches of a 224 px image,
  and 115.5 px for 7x7.

  Args:
    weights: [depth, B, H, L, L].
    apart: float32 [N, N], from `patch_distances`.
    num_prefix_tokens: L - N.

  Returns:
    [depth, H], in the unit of `apart`.
  """
  patches = weights[..., num_prefix_tokens:, num_prefix_tokens:]
  distances = (patches * apart).sum(axis=-1)  # [depth, B, H, N]
  return distances.mean(axis=-1).sum(axis=1)


def patch_distances(
  grid: tuple[int, int], image_size: tuple[int, int]
) -> np.ndarray:
  """Returns the distances between patches, [N, N], float64 in pixels.

  Args:
    grid: (rows, columns) of the patches.
    image_size: (height, width) in pixels that the patches cover. Divided by the
      grid, it gives the size of a patch, also in hybrids, whose patches are of
      feature maps.
  """
  places = np.indices(grid).reshape(2, -1).T  # [N, 2]: row and column
  places = places * (np.asarray(image_size) / grid)
  return np.linalg.norm(places[:, None] - places[None], axis=-1)


def uniform_distances(
  grid: tuple[int, int], image_size: tuple[int, int]
) -> tuple[float, float]:
  """Returns the mean distance in pixels of uniform attention to the patches.

  The first number is for all patches, the second one for the nearest half.
  """
  apart = np.sort(patch_distances(grid, image_size), axis=1)
  half = max(1, len(apart) // 2)
  return float(apart.mean()), float(apart[:, :half].mean())
