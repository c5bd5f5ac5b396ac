"""Position embeddings and their transfer between image sizes.

A learned table with one row per token in raster order, the class token's row
first (arXiv:2010.11929, §3.1). Fine-tuning at another resolution interpolates
the patch rows by location (§3.2).

Axes: B batch, L tokens, D width.
"""

import math

import flax.linen as nn
import jax
import numpy as np


def token_grid(
  image_size: tuple[int, int], patch_size: int | tuple[int, int]
) -> tuple[int, int]:
  """Returns the (rows, columns) of whole patches in an image.

  Args:
    image_size: (height, width) in pixels.
    patch_size: side, or (height, width), of a patch in pixels.

  Raises:
    ValueError: the image is smaller than one patch.
  """
  if isinstance(patch_size, int):
    patch_size = (patch_size, patch_size)
  rows, columns = (
    pixels // patch
    for pixels, patch in zip(image_size, patch_size, strict=True)
  )
  if not rows or not columns:
    raise ValueError(
      f'image size {_by(image_size)} px is below one patch of '
      f'{_by(patch_size)} px: resize the images, or use a smaller patch.'
    )
  return rows, columns


class PositionEmbedding(nn.Module):
  """Adds the learned table `pos_embedding` [1, L, D] to the tokens."""

  @nn.compact
  def __call__(self, tokens: jax.Array, *, grid: tuple[int, int]) -> jax.Array:
    """Adds the position embedding.

    Args:
      tokens: [B, L, D], the prefix (class) tokens first.
      grid: (rows, columns) of the patch tokens; the other tokens are prefix.

    Returns:
      [B, L, D] in the tokens' dtype.

    Raises:
      ValueError: the parameters' table has another number of rows. Another
        grid with the same number of rows cannot be told apart.
    """
    _, length, width = tokens.shape
    if self.has_variable('params', 'pos_embedding'):
      stored = self.get_variable('params', 'pos_embedding').shape[1]
      if stored != length:
        prefix = length - math.prod(grid)
        old = _square(stored - prefix)
        raise ValueError(
          f'the position embedding has {stored} tokens '
          f'({_layout(prefix, old)}), but these images give {length} '
          f'({_layout(prefix, grid)}): use images of the size the '
          'parameters are for, or adapt the parameters with '
          'vit_jax.models.position.resize.'
        )
    table = self.param(
      'pos_embedding', nn.initializers.normal(0.02), (1, length, width)
    )
    return tokens + table.astype(tokens.dtype)


def resize(
  pos_embedding: np.ndarray | jax.Array,
  *,
  old_grid: tuple[int, int] | None = None,
  new_grid: tuple[int, int],
  num_prefix_tokens: int,
) -> np.ndarray:
  """Interpolates a position embedding to another token grid.

  Bilinear with aligned corner samples and no antialiasing: what
  `scipy.ndimage.zoom(grid, ..., order=1)` does, which the released
  checkpoints were fine-tuned with (but where rounding puts SciPy's last sample
  outside the grid, as in 15 -> 26, it returns zeros there; this does not).
  `jax.image.resize` aligns pixel borders instead and gives other numbers.

  Args:
    pos_embedding: [1, S + rows * columns, D], any float dtype.
    old_grid: its (rows, columns); None if it is square.
    new_grid: the (rows, columns) to interpolate to.
    num_prefix_tokens: S, the leading rows that have no location and are kept:
      1 with a class token, else 0.

  Returns:
    [1, S + new rows * new columns, D], same dtype, computed in float64.

  Raises:
    ValueError: the number of tokens is not that of the old grid.
  """
  table = np.asarray(pos_embedding)
  if table.ndim != 3 or table.shape[0] != 1:
    raise ValueError(
      f'the position embedding has shape {table.shape}, expected '
      '(1, tokens, width).'
    )
  num_patches = table.shape[1] - num_prefix_tokens
  if old_grid is None:
    old_grid = _square(num_patches)
    if old_grid is None:
      raise ValueError(
        f'{num_patches} patch tokens ({table.shape[1]} minus '
        f'{num_prefix_tokens} prefix) are not a square grid: give old_grid '
        '(and check num_prefix_tokens).'
      )
  if math.prod(old_grid) != num_patches:
    raise ValueError(
      f'old_grid {_by(old_grid)} has {math.prod(old_grid)} tokens, but the '
      f'position embedding has {num_patches} ({table.shape[1]} minus '
      f'{num_prefix_tokens} prefix).'
    )
  if tuple(old_grid) == tuple(new_grid):
    return table
  prefix, patches = np.split(table[0], [num_prefix_tokens])
  patches = np.einsum(
    'ih,jw,hwd->ijd',
    _bilinear(old_grid[0], new_grid[0]),
    _bilinear(old_grid[1], new_grid[1]),
    patches.reshape(*old_grid, -1),  # [rows, columns, D]
    optimize=True,
  ).reshape(math.prod(new_grid), -1)  # [new rows * new columns, D]
  return np.concatenate([prefix, patches.astype(table.dtype)])[None]


def _bilinear(old: int, new: int) -> np.ndarray:
  """Interpolation weights [new, old], float64; the end samples coincide."""
  position = np.linspace(0, old - 1, new)  # New samples in old coordinates.
  return np.maximum(0, 1 - np.abs(position[:, None] - np.arange(old)))


def _square(num_patches: int) -> tuple[int, int] | None:
  side = math.isqrt(max(num_patches, 0))
  return (side, side) if side and side**2 == num_patches else None


def _by(sizes: tuple[int, int]) -> str:
  return f'{sizes[0]}x{sizes[1]}'


def _layout(prefix: int, grid: tuple[int, int] | None) -> str:
  patches = f'a {_by(grid)} grid' if grid else 'no square grid'
  return f'{prefix} class + {patches}' if prefix else patches
