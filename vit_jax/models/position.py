"""Position embeddings that are added, and their transfer between image sizes.

The paper's default is a learned table with one row per token in raster order,
the class token's row first (arXiv:2010.11929, §3.1). Fine-tuning at another
resolution interpolates the patch rows by location (§3.2). The other embeddings
are those of §D.4, except the relative one, which is a part of attention.

Axes: B batch, L tokens, D width.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# Standard deviation of initial values, as in the released code.
STDDEV = 0.02


def grid_of(
  model: nn.Module, image_size: tuple[int, int]
) -> tuple[int, int] | None:
  """Returns a model's (rows, columns) of tokens; None if it has no tokens."""
  if not hasattr(model, 'token_grid'):
    return None
  return model.token_grid(image_size)


def stored_grid(
  model: nn.Module, image_size: tuple[int, int]
) -> tuple[int, int] | None:
  """Returns the (rows, columns) of a model's position parameters, or None."""
  return getattr(model, 'position_grid', None) or grid_of(model, image_size)


def token_grid(
  image_size: tuple[int, int],
  patch_size: tuple[int, int],
  what: str = 'image',
) -> tuple[int, int]:
  """Returns the (rows, columns) of whole patches in an image.

  Args:
    image_size: (height, width) of an image in pixels, or of a feature map.
    patch_size: (height, width) of a patch in the same unit.
    what: 'image' or 'feature map'; for the error.

  Raises:
    ValueError: the image is smaller than one patch.
  """
  rows, columns = (
    pixels // patch
    for pixels, patch in zip(image_size, patch_size, strict=True)
  )
  if not rows or not columns:
    unit = ' px' if what == 'image' else ''
    raise ValueError(
      f'{what} size {_by(image_size)}{unit} is below one patch of '
      f'{_by(patch_size)}{unit}: use larger images, or a smaller patch.'
    )
  return rows, columns


# Embeddings that are added to tokens; `attention` has the relative ones.
FIXED = ('sincos2d', 'sincos2d_mae')
ADDED = ('1d', '2d', *FIXED)


class Table(nn.Module):
  """The position embedding that is added to the tokens.

  '1d' learns one row per token in raster order, the paper's default. '2d'
  learns a vector per column and one per row, each D/2 wide (§D.4): a patch gets
  the concatenation of its column's vector and its row's. The paper leaves the
  class token open: here it has its own vector of D numbers. 'sincos2d' learns
  nothing, so it works with any grid: it has sines and cosines of the column and
  of the row, as in "Better plain ViT baselines for ImageNet-1k"
  (arXiv:2205.01580), and zeros for a class token. 'sincos2d_mae' is the same
  with the frequencies of masked autoencoders (arXiv:2111.06377, in the public
  code facebookresearch/mae, util/pos_embed.py).

  Attributes:
    kind: one of `ADDED`.
    stddev: standard deviation of the initial values.
    grid: (rows, columns) of the embedding, which is resized at each call to
      those of the patches, as in FlexiViT (arXiv:2212.08013); None: theirs.
      Differs from the authors' code (big_vision, models/proj/flexi/vit.py): a
      class token has a row, too.
  """

  kind: str
  stddev: float = STDDEV
  grid: tuple[int, int] | None = None

  @nn.compact
  def __call__(
    self, *, grid: tuple[int, int], num_prefix_tokens: int, width: int
  ) -> jax.Array:
    """Returns the position embedding.

    Args:
      grid: (rows, columns) of the patch tokens.
      num_prefix_tokens: S, 1 with a class token, which comes first, else 0.
      width: D.

    Returns:
      [1, S + rows * columns, D], float32.
    """
    stored = self.grid or grid
    table = self._table(stored, num_prefix_tokens, width)
    if stored == grid:
      return table
    prefix, patches = jnp.split(table, [num_prefix_tokens], axis=1)
    patches = patches.reshape(1, *stored, width)
    # It antialiases, as that code does here.
    patches = jax.image.resize(patches, (1, *grid, width), 'linear')
    return jnp.concatenate([prefix, patches.reshape(1, -1, width)], axis=1)

  def _table(
    self, grid: tuple[int, int], num_prefix_tokens: int, width: int
  ) -> jax.Array:
    normal = nn.initializers.normal(self.stddev)
    if self.kind in FIXED:
      waves = _waves(grid, width, slowest=self.kind == 'sincos2d')
      table = np.pad(waves, ((num_prefix_tokens, 0), (0, 0)))
      return jnp.asarray(table[None], jnp.float32)
    if self.kind == '1d':
      length = num_prefix_tokens + math.prod(grid)
      return self.param('pos_embedding', normal, (1, length, width))
    rows, columns = grid
    x = self.param('x_embedding', normal, (columns, width // 2))
    y = self.param('y_embedding', normal, (rows, width // 2))
    table = jnp.concatenate(
      [
        jnp.broadcast_to(x[None, :], (rows, columns, width // 2)),
        jnp.broadcast_to(y[:, None], (rows, columns, width // 2)),
      ],
      axis=-1,
    ).reshape(rows * columns, width)  # [rows * columns, D]
    if num_prefix_tokens:
      cls = self.param('cls_embedding', normal, (num_prefix_tokens, width))
      table = jnp.concatenate([cls, table])
    return table[None]  # [1, L, D]


def _waves(grid: tuple[int, int], width: int, *, slowest: bool) -> np.ndarray:
  """Returns sines and cosines of the column and of the row (not in the paper).

  With frequencies f_j = 10,000^(-j / (D/4 - 1)), j = 0 ... D/4 - 1, a patch in
  column x and row y gets [sin(x f), cos(x f), sin(y f), cos(y f)].

  Args:
    grid: (rows, columns).
    width: D.
    slowest: whether 1 / 10,000 is a frequency; else f_j = 10,000^(-j / (D/4)).

  Returns:
    [rows * columns, D], float64.
  """
  powers = np.linspace(0, 1, width // 4, endpoint=slowest)  # [D/4]
  frequencies = 10_000.0**-powers
  y, x = np.indices(grid).reshape(2, -1, 1)  # [rows * columns, 1] each
  return np.concatenate(
    [
      wave(coordinate * frequencies)
      for coordinate in (x, y)
      for wave in (np.sin, np.cos)
    ],
    axis=1,
  )


def resize(
  pos_embedding: np.ndarray | jax.Array,
  *,
  old_grid: tuple[int, int] | None = None,
  new_grid: tuple[int, int],
  num_prefix_tokens: int,
  method: str = 'bilinear',
) -> np.ndarray:
  """Interpolates a position embedding to another token grid.

  The paper's interpolation is bilinear, with aligned corner samples and no
  antialiasing, like `scipy.ndimage.zoom(grid, ..., order=1)`, with which the
  released checkpoints were fine-tuned. One case differs: SciPy returns zeros
  where rounding puts its last sample outside the grid, as in 15 -> 26.
  `jax.image.resize` aligns pixel borders instead and gives other numbers.

  Args:
    pos_embedding: [1, S + rows * columns, D], any float dtype.
    old_grid: (rows, columns) of the embedding; None if its grid is square.
    new_grid: the (rows, columns) to interpolate to.
    num_prefix_tokens: S, the number of leading rows without a location, which
      are kept: 1 with a class token, else 0.
    method: 'bilinear' is the paper's. 'bicubic' is that of PyTorch without
      antialiasing (transformers, DINOv2), 'bicubic_antialias' with it (timm);
      both align pixel borders.

  Returns:
    [1, S + new rows * new columns, D], same dtype, computed in float64.

  Raises:
    ValueError: the shape is another one, or the number of tokens is not that of
      the old grid.
  """
  table = np.asarray(pos_embedding)
  if table.ndim != 3 or len(table) != 1:
    raise ValueError(
      f'the position embedding has the shape {table.shape}, expected (1,'
      ' tokens, width).'
    )
  num_patches = table.shape[1] - num_prefix_tokens
  if old_grid is None:
    side = math.isqrt(max(num_patches, 0))
    if not side or side**2 != num_patches:
      raise ValueError(
        f'{num_patches} patch tokens ({table.shape[1]} minus '
        f'{num_prefix_tokens} prefix) are not a square grid: give old_grid '
        '(and check num_prefix_tokens).'
      )
    old_grid = (side, side)
  if math.prod(old_grid) != num_patches:
    raise ValueError(
      f'old_grid {_by(old_grid)} has {math.prod(old_grid)} tokens, but the '
      f'position embedding has {num_patches} ({table.shape[1]} minus '
      f'{num_prefix_tokens} prefix).'
    )
  if tuple(old_grid) == tuple(new_grid):
    return table
  prefix, patches = np.split(table[0], [num_prefix_tokens])
  weights = _bilinear
  if method != 'bilinear':
    weights = functools.partial(_bicubic, antialias='antialias' in method)
  patches = np.einsum(
    'ih,jw,hwd->ijd',
    weights(old_grid[0], new_grid[0]),
    weights(old_grid[1], new_grid[1]),
    patches.reshape(*old_grid, -1),  # [rows, columns, D]
    optimize=True,
  ).reshape(math.prod(new_grid), -1)  # [new rows * new columns, D]
  return np.concatenate([prefix, patches.astype(table.dtype)])[None]


def resize_rows(table: np.ndarray | jax.Array, length: int) -> np.ndarray:
  """Interpolates a table along its first axis to another length.

  This is what `resize` does along one axis: linear, the end rows coincide.

  Args:
    table: [old, ...], any float dtype.
    length: the new number of rows, at least 1.

  Returns:
    [length, ...], same dtype, computed in float64.
  """
  table = np.asarray(table)
  if len(table) == length:
    return table
  return np.tensordot(_bilinear(len(table), length), table, 1).astype(
    table.dtype
  )


def resize_relative(table: np.ndarray | jax.Array, offsets: int) -> np.ndarray:
  """Interpolates relative position embeddings to more or fewer offsets.

  The interpolation is linear: offset 0 stays offset 0, and the longest offset
  becomes the longest. Along one axis, this is what §3.2 does to positions. For
  offsets in raster order it is only an approximation, because they mix rows
  and columns, whose numbers change.

  Args:
    table: [2L-1, ...], any float dtype; the most negative offset comes first.
    offsets: the new number, 2L'-1.

  Returns:
    [offsets, ...], same dtype, computed in float64.
  """
  if offsets == 1:  # Interpolation would take the first row, not the middle.
    return np.asarray(table)[len(table) // 2 :][:1]
  return resize_rows(table, offsets)


def _bilinear(old: int, new: int) -> np.ndarray:
  """Returns weights [new, old], float64; the end samples coincide."""
  position = np.linspace(0, old - 1, new)  # New samples in old coordinates.
  return np.maximum(0, 1 - np.abs(position[:, None] - np.arange(old)))


def _bicubic(old: int, new: int, antialias: bool) -> np.ndarray:
  """Returns weights [new, old], float64, of `torch.nn.functional.interpolate`.

  They are Keys' (https://doi.org/10.1109/TASSP.1981.1163711) with a = -0.75 and
  repeated borders, or with antialiasing a = -0.5, without what lies beyond.
  """
  a = -0.5 if antialias else -0.75
  width = max(1, old / new) if antialias else 1
  margin = 0 if antialias else 3
  places = (np.arange(new) + 0.5) * old / new - 0.5
  samples = np.arange(-margin, old + margin)
  x = np.abs(places[:, None] - samples) / width  # [new, samples]
  near = (a + 2) * x**3 - (a + 3) * x**2 + 1
  far = a * (x**3 - 5 * x**2 + 8 * x - 4)
  weights = np.where(x < 1, near, np.where(x < 2, far, 0))
  weights /= weights.sum(axis=1, keepdims=True)
  result = np.zeros((old, new))
  np.add.at(result, np.clip(samples, 0, old - 1), weights.T)
  return result.T


def _by(sizes: tuple[int, int]) -> str:
  return f'{sizes[0]}x{sizes[1]}'
