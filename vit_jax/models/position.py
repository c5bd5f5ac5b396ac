"""Position embeddings that are added, and their transfer between image sizes.

The paper's default is a learned table with one row per token in raster order,
the class token's row first (arXiv:2010.11929, §3.1). Fine-tuning at another
resolution interpolates the patch rows by location (§3.2). The others are those
of §D.4, but for the relative one, which is a part of attention.

Axes: B batch, L tokens, D width.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# Of initial values: that of the released code.
STDDEV = 0.02
# Of an image: 16,384 px with patches of 16. A file may state any image size.
_MOST_TOKENS = 2**20


def token_grid(
  image_size: tuple[int, int],
  patch_size: int | tuple[int, int],
  what: str = 'image',
) -> tuple[int, int]:
  """Returns the (rows, columns) of whole patches in an image.

  Args:
    image_size: (height, width) in pixels, or of a feature map.
    patch_size: side, or (height, width), of a patch in the same unit.
    what: 'image' or 'feature map'; for the error.

  Raises:
    ValueError: the image is smaller than one patch, or has too many of them.
  """
  if isinstance(patch_size, int):
    patch_size = (patch_size, patch_size)
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
  if rows * columns > _MOST_TOKENS:
    raise ValueError(
      f'{what} size {_by(image_size)} has {rows * columns:,} patches of'
      f' {_by(patch_size)}, expected at most {_MOST_TOKENS:,}.'
    )
  return rows, columns


class LearnedTable(nn.Module):
  """One learned row per token in raster order, 1-D (the paper's default).

  Attributes:
    stddev: of the initial values.
  """

  stddev: float = STDDEV

  @nn.compact
  def __call__(
    self, *, grid: tuple[int, int], num_prefix_tokens: int, width: int
  ) -> jax.Array:
    """Returns the position embedding.

    Args:
      grid: (rows, columns) of the patch tokens.
      num_prefix_tokens: S, the class token's 1, or 0; they come first.
      width: D.

    Returns:
      [1, S + rows * columns, D], float32.

    Raises:
      ValueError: the parameters' table has another number of rows. Another
        grid with the same number of rows cannot be told apart.
    """
    length = num_prefix_tokens + math.prod(grid)
    if self.has_variable('params', 'pos_embedding'):
      stored = self.get_variable('params', 'pos_embedding').shape[1]
      if stored != length:
        old = _square(stored - num_prefix_tokens)
        raise _wrong_size(
          f'{stored} tokens ({_layout(num_prefix_tokens, old)})',
          f'{length} ({_layout(num_prefix_tokens, grid)})',
        )
    return self.param(
      'pos_embedding',
      nn.initializers.normal(self.stddev),
      (1, length, width),
    )


class LearnedXY(nn.Module):
  """A learned vector per column and one per row, each D/2 wide (§D.4, 2-D).

  A patch gets the concatenation of its column's and its row's. The paper
  leaves the class token open: here it has a D-vector of its own.

  Attributes:
    stddev: of the initial values.
  """

  stddev: float = STDDEV

  @nn.compact
  def __call__(
    self, *, grid: tuple[int, int], num_prefix_tokens: int, width: int
  ) -> jax.Array:
    """As `LearnedTable`."""
    rows, columns = grid
    normal = nn.initializers.normal(self.stddev)
    tables = []
    for name, length in (('x_embedding', columns), ('y_embedding', rows)):
      if self.has_variable('params', name):
        stored = len(self.get_variable('params', name))
        if stored != length:
          raise _wrong_size(
            f'{stored} rows in {name}', f'{length} (a {_by(grid)} grid)'
          )
      tables.append(self.param(name, normal, (length, width // 2)))
    x, y = tables
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


class SinCosXY(nn.Module):
  """Fixed sines and cosines of the column and of the row (not in the paper).

  With frequencies f_j = 10,000^(-j / (D/4 - 1)), j = 0 ... D/4 - 1, a patch in
  column x and row y gets [sin(x f), cos(x f), sin(y f), cos(y f)], as in
  "Better plain ViT baselines for ImageNet-1k" (arXiv:2205.01580). A class
  token gets zeros. Nothing is learned, so any grid will do.
  """

  @nn.compact
  def __call__(
    self, *, grid: tuple[int, int], num_prefix_tokens: int, width: int
  ) -> jax.Array:
    """As `LearnedTable`, but made for any grid."""
    frequencies = 10_000.0 ** -np.linspace(0, 1, width // 4)  # [D/4]
    y, x = np.indices(grid).reshape(2, -1, 1)  # [rows * columns, 1] each
    table = np.concatenate(
      [
        wave(coordinate * frequencies)
        for coordinate in (x, y)
        for wave in (np.sin, np.cos)
      ],
      axis=1,
    )  # [rows * columns, D]
    table = np.pad(table, ((num_prefix_tokens, 0), (0, 0)))
    return jnp.asarray(table[None], jnp.float32)  # [1, L, D]


# What `position_embedding` may be besides; see `attention` for 'relative'.
LEARNED = {'1d': LearnedTable, '2d': LearnedXY}
ADDED = LEARNED | {'sincos2d': SinCosXY}


def check_width(kind: str, width: int) -> None:
  """Raises a ValueError for a width that `ADDED[kind]` cannot divide."""
  if kind == '2d' and width % 2:
    raise ValueError(
      'position_embedding="2d" gives half of the width to x and half to y: '
      f'width is {width}, expected an even one.'
    )
  if kind == 'sincos2d' and (width % 4 or width < 8):
    raise ValueError(
      'position_embedding="sincos2d" gives a quarter of the width to each of '
      f'four waves: width is {width}, expected a multiple of 4, at least 8.'
    )


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


def resize_rows(table: np.ndarray | jax.Array, length: int) -> np.ndarray:
  """Interpolates the vectors of columns, or of rows, to another number.

  What `resize` does along one axis: linear, the end rows coincide.

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

  Linear: offset 0 stays offset 0, and the longest becomes the longest. Along
  an axis that is what §3.2 does to positions. Of offsets in raster order it
  is only an approximation: they mix rows and columns, whose number changes.

  Args:
    table: [2L-1, ...], any float dtype, from the most negative offset on.
    offsets: the new number, 2L'-1.

  Returns:
    [offsets, ...], same dtype, computed in float64.

  Raises:
    ValueError: one of the two numbers is even.
  """
  table = np.asarray(table)
  if len(table) % 2 == 0 or offsets % 2 == 0:
    raise ValueError(
      f'relative embeddings of {len(table)} offsets cannot become {offsets}: '
      'L tokens have 2L - 1 offsets, an odd number.'
    )
  if offsets == 1:  # The middle; interpolation would take the first.
    return table[len(table) // 2 :][:1]
  return resize_rows(table, offsets)


def _bilinear(old: int, new: int) -> np.ndarray:
  """Interpolation weights [new, old], float64; the end samples coincide."""
  position = np.linspace(0, old - 1, new)  # New samples in old coordinates.
  return np.maximum(0, 1 - np.abs(position[:, None] - np.arange(old)))


def _square(num_patches: int) -> tuple[int, int] | None:
  side = math.isqrt(max(num_patches, 0))
  return (side, side) if side and side**2 == num_patches else None


def _wrong_size(stored: str, needed: str) -> ValueError:
  return ValueError(
    f'the position embedding has {stored}, but these images give {needed}: use '
    'images of the size the parameters are for, or adapt the parameters with '
    'vit_jax.interop.load or vit_jax.models.position.resize.'
  )


def _by(sizes: tuple[int, int]) -> str:
  return f'{sizes[0]}x{sizes[1]}'


def _layout(prefix: int, grid: tuple[int, int] | None) -> str:
  patches = f'a {_by(grid)} grid' if grid else 'no square grid'
  return f'{prefix} class + {patches}' if prefix else patches
