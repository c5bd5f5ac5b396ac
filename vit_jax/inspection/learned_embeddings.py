"""Analysis of learned embeddings: patch filters, positions (Figures 7, 10)."""

import math
import re
from typing import Any

import numpy as np

from vit_jax.models import unstack_blocks


def filters(kernel: np.ndarray, components: int = 28) -> np.ndarray:
  """Returns the principal components of a patch embedding (Figure 7, left).

  The D filters are the observations and their P * P * C numbers the variables.
  The mean filter is subtracted. A component is a direction among patches.

  The paper does not define the scale. Here the number of largest magnitude in a
  component becomes 1 and zero becomes 0.5, so a filter ignores the patch where
  it is mid-grey. The sign of a component has no meaning; here the number of
  largest magnitude is positive.

  Args:
    kernel: [P, P, C, D] `embedding/kernel` of a ViT.
    components: how many components, in order of falling variance.

  Returns:
    [components, P, P, C], float64 in 0..1.

  Raises:
    ValueError: the kernel is not over the pixels of RGB or grey images, as in
      hybrids, or has fewer components.
  """
  kernel = np.asarray(kernel, np.float64)
  if kernel.ndim != 4 or kernel.shape[2] not in (1, 3):
    raise ValueError(
      f'filters of a kernel of shape {list(kernel.shape)} cannot be shown as'
      ' images: expected [height, width, 1 or 3 channels, width of the model].'
      " A hybrid's kernel is applied to a feature map."
    )
  matrix = kernel.reshape(-1, kernel.shape[-1]).T  # [D, P * P * C]
  most = min(matrix.shape)
  if not 1 <= components <= most:
    raise ValueError(
      f'{components} principal components requested from a kernel of shape'
      f' {list(kernel.shape)}: expected 1 to {most}.'
    )
  _, _, directions = np.linalg.svd(matrix - matrix.mean(0), full_matrices=False)
  found = directions[:components]  # [components, P * P * C]
  largest = np.abs(found).argmax(axis=1)
  found = found / found[np.arange(components), largest, None]
  return (0.5 + found / 2).reshape(-1, *kernel.shape[:3])


def position_similarity(
  params: Any, grid: tuple[int, int], *, block: int | None = None
) -> np.ndarray:
  """Returns the similarity of the patches' position embeddings (Figures 7, 10).

  The class token's embedding is left out.

  Args:
    params: parameters of a ViT or hybrid, stacked for `scan=True` or not.
    grid: (rows, columns) of its patches.
    block: the block's index, if each block has its own position embeddings
      (position_site='every_layer'); else None.

  Returns:
    [rows, columns, rows, columns], float64: cosines between the embeddings of
    two patches, one at the first two indices and one at the last two.

  Raises:
    ValueError: the model has no learned position embeddings that are added to
      the patches, or they are for another grid.
  """
  table = _position_table(params, block)  # [S + N, D], or a table per axis
  if isinstance(table, tuple):
    x, y = table
    found = (len(y), len(x))
    if found != tuple(grid):
      raise _wrong_grid(f'{found[0]}x{found[1]}', grid)
    patches = np.concatenate(
      [np.tile(x, (len(y), 1)), np.repeat(y, len(x), axis=0)], axis=1
    )  # [N, D]
  else:
    patches = table[-math.prod(grid) :]  # [N, D]
    if len(table) - math.prod(grid) not in (0, 1):
      raise _wrong_grid(f'{len(table)} tokens', grid)
  norms = np.linalg.norm(patches, axis=1, keepdims=True)
  # The cosines of a zero embedding are defined as 0.
  directions = patches / np.where(norms, norms, 1)
  return np.clip(directions @ directions.T, -1, 1).reshape(*grid, *grid)


def own_blocks(params: Any) -> int:
  """Returns the number of blocks with their own position embeddings."""
  return sum(
    'posembed_input' in block for block in _encoder_blocks(params).values()
  )


def _encoder_blocks(params: Any) -> dict[str, Any]:
  if 'encoderblock' in params.get('Transformer', {}):
    params = unstack_blocks(params)
  return {
    name: block
    for name, block in params.get('Transformer', {}).items()
    if re.fullmatch(r'encoderblock_\d+', name)
  }


def _position_table(
  params: Any, block: int | None
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
  """Returns [S + N, D], or for 2d [columns, D / 2] and [rows, D / 2].

  S is the number of prefix tokens, 0 or 1.
  """
  holder = params.get('Transformer', {})
  if count := own_blocks(params):
    if block is None or not 0 <= block < count:
      raise ValueError(
        'each block has its own position embeddings: block is'
        f' {block}, expected 0 to {count - 1}.'
      )
    holder = _encoder_blocks(params)[f'encoderblock_{block}']
  tables = holder.get('posembed_input', {})
  tables = {name: np.asarray(t, np.float64) for name, t in tables.items()}
  if 'pos_embedding' in tables:
    return tables['pos_embedding'][0]
  if 'x_embedding' in tables:
    return tables['x_embedding'], tables['y_embedding']
  raise ValueError(
    'the model has no learned position embeddings that are added to its'
    " patches: it is a ResNet, or its position_embedding is 'none', 'sincos2d',"
    " 'relative' or 'relative_per_head'."
  )


def _wrong_grid(found: str, grid: tuple[int, int]) -> ValueError:
  return ValueError(
    f'the position embeddings are for {found}, the grid is {grid[0]}x{grid[1]}:'
    " pass the model's token_grid of the image size that the parameters are"
    ' for.'
  )
