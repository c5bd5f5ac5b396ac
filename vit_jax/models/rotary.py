"""Rotary position embeddings in two dimensions.

The channels of a head form K/2 planes. In each plane, the query and the key of
a patch are turned by an angle that is linear in the patch's column and row. So
the score of two patches depends only on the differences of their coordinates
(RoFormer, arXiv:2104.09864). The angles follow from the grid alone, so that a
model takes images of any size.

'axial' is that of RoPE-ViT (arXiv:2403.13298): the first half of the planes
turns with the column x, the second half with the row y, both with the
frequencies base^(-4i/K), i = 0 ... K/4 - 1. In 'mixed', from the same paper,
each head of each layer learns two frequencies of a plane, one for x and one for
y. In both, neighbouring channels form a plane.

'dinov3' is that of DINOv3 (arXiv:2508.10104): coordinates of the patches'
centres run from -1 to 1 on each axis, 2 pi of them times the same frequencies
are the angles, and y has the first half of the planes. Channels i and i + K/2
form a plane. Differs from DINOv3: its training shifts and scales coordinates at
random, and its released weights have frequencies rounded to bfloat16.

Axes: B batch, L rows (tokens, and what follows them), H heads, K width of one
head.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.model_options import Options

# Of each kind of `Options.rotary`, as in its source.
BASES = {'axial': 100.0, 'mixed': 10.0, 'dinov3': 100.0}


def _frequencies(base: float, width: int) -> np.ndarray:
  """Returns base^(-4i/K), [K/4], float64."""
  return base ** -(np.arange(0, width, 4) / width)


def init_mixed(base: float | None) -> jax.nn.initializers.Initializer:
  """Returns the initializer of the frequencies of 'mixed', [2, H, K/2].

  As in the authors' code (naver-ai/rope-vit), two planes of each frequency turn
  with two coordinates that are at right angles to each other, and whose
  direction is random for each head.
  """

  def init(key, shape, dtype=jnp.float32):
    _, heads, planes = shape
    size = _frequencies(base or BASES['mixed'], 2 * planes)
    size = jnp.tile(jnp.asarray(size, dtype), 2)
    direction = jax.random.uniform(key, (heads, 1), dtype, maxval=2 * math.pi)
    direction += jnp.repeat(jnp.asarray([0, math.pi / 2], dtype), planes // 2)
    return size * jnp.stack([jnp.cos(direction), jnp.sin(direction)])

  return init


def angles(
  options: Options,
  grid: tuple[int, int],
  tokens: int,
  rows: int,
  width: int,
  learned: jax.Array | None = None,
) -> jax.Array:
  """Returns the angles by which queries and keys turn.

  Tokens before the patches do not turn. If `rotary_registers` is set, the
  registers, directly before the patches, do: they have places on a square grid
  of their own. ViT-5 (arXiv:2602.08071) does so, with the base 100.
  Differs from ViT-5, by no more than the order of channels and tokens: there, y
  has the first half of the planes, and the registers follow the patches.

  Args:
    options: with `rotary`.
    grid: (rows, columns) of the patches.
    tokens: the number of tokens; the patches are the last ones.
    rows: L, at least `tokens`; the rows after the tokens do not turn.
    width: K, a multiple of 4.
    learned: the frequencies of 'mixed', [2, H, K/2]; x is the first.

  Returns:
    [L, H, K/2], or [L, 1, K/2] for all heads, float32.
  """
  kind, prefix = options.rotary, tokens - math.prod(grid)
  if kind == 'mixed':
    y, x = np.indices(grid, np.float32).reshape(2, -1, 1, 1)
    found = x * learned[0] + y * learned[1]
  else:
    found = _fixed(kind, options.rotary_base or BASES[kind], grid, width)
  if options.rotary_registers is not None:
    side = math.isqrt(options.registers)
    prefix -= options.registers
    own = _fixed(kind, options.rotary_registers, (side, side), width)
    found = np.concatenate([own, found])
  return jnp.pad(found, [(prefix, rows - tokens), (0, 0), (0, 0)])


def _fixed(
  kind: str, base: float, grid: tuple[int, int], width: int
) -> np.ndarray:
  """Returns the angles of patches for 'axial' or 'dinov3'."""
  y, x = np.indices(grid).reshape(2, -1, 1, 1)
  first, second = x, y
  if kind == 'dinov3':
    first, second = (
      2 * np.pi * ((2 * place + 1) / size - 1)
      for place, size in zip((y, x), grid, strict=True)
    )
  frequencies = _frequencies(base, width)
  return np.concatenate(
    [first * frequencies, second * frequencies], axis=-1, dtype=np.float32
  )


def rotate(heads: jax.Array, angles: jax.Array, kind: str) -> jax.Array:
  """Turns queries or keys.

  Args:
    heads: [B, L, H, K], any float dtype.
    angles: see `angles`.
    kind: that of `Options.rotary`.

  Returns:
    The same shape and dtype; computed in float32.
  """
  halves = kind == 'dinov3'
  # Shifts of channels, not a dimension of 2, which a TPU would pad to 128.
  step = heads.shape[-1] // 2 if halves else 1

  def spread(first, second):  # To both channels of each plane.
    if halves:
      return jnp.concatenate([first, second], axis=-1)  # [L, ..., K]
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)

  cosine, sine = jnp.cos(angles), jnp.sin(angles)
  none = jnp.zeros_like(sine)
  turned = heads * spread(cosine, cosine)
  turned += jnp.roll(heads, -step, axis=-1) * spread(-sine, none)
  turned += jnp.roll(heads, step, axis=-1) * spread(none, sine)
  return turned.astype(heads.dtype)
