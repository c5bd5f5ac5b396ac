"""Arrays in the results of HLO instructions: types, sizes and layouts.

An example of the text is `bf16[8,197,384]{2,1,0:T(8,128)(2,1)S(1)}`. The braces
hold the dimensions, fastest varying first, the tiles, and the memory space,
which this module ignores.
"""

import dataclasses
import functools
import math
import re

# Bits of an element; HLO packs types of less than a byte.
_BITS = {
  'pred': 8,
  **{f'{kind}{n}': n for kind in 'su' for n in (1, 2, 4, 8, 16, 32, 64)},
  **{'bf16': 16, 'f16': 16, 'f32': 32, 'f64': 64, 'c64': 64, 'c128': 128},
  # Control tokens and the state of a running transfer hold no data.
  **{'token': 0, 'opaque': 0},
}
_NARROW_FLOAT = re.compile(r'f(4|8)e\d')
_ARRAY = re.compile(r'([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?')
_TILE = re.compile(r'T\(([\d,*]+)\)')


@dataclasses.dataclass(frozen=True)
class Array:
  """An array in a result, with its layout.

  Attributes:
    dtype: HLO's name, such as 'bf16' or 'pred'.
    dims: sizes.
    minor_to_major: dimensions, fastest varying first; empty if not given.
    tile: sizes of the outermost tile, such as (8, 128); empty if untiled.
  """

  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...] = ()
  tile: tuple[int, ...] = ()

  @property
  def bytes(self) -> int:
    """Bytes without padding."""
    return -(-math.prod(self.dims) * _bits(self.dtype) // 8)

  @property
  def padded_bytes(self) -> int:
    """Bytes with the minor dimensions rounded up to whole tiles."""
    order = self.minor_to_major or range(len(self.dims))[::-1]
    major_first = [self.dims[i] for i in reversed(order)]
    missing = len(self.tile) - len(major_first)
    major_first = [1] * missing + major_first
    for i, size in enumerate(reversed(self.tile), start=1):
      major_first[-i] = -(-major_first[-i] // size) * size
    return -(-math.prod(major_first) * _bits(self.dtype) // 8)


@functools.cache
def parse(text: str) -> tuple[Array, ...]:
  """Parses an array or the arrays of a (nested) tuple, in order."""
  return tuple(
    _parse_array(dtype, dims, layout)
    for dtype, dims, layout in _ARRAY.findall(text)
  )


def _parse_array(dtype: str, dims: str, layout: str) -> Array:
  order, _, tiling = layout.partition(':')
  tile = _TILE.search(tiling)
  return Array(
    dtype,
    # `<=8` is a size that is known only at run time; 8 is allocated.
    tuple(int(size.strip('<=')) for size in dims.split(',') if size),
    tuple(int(i) for i in order.split(',') if i),
    # `*` joins a dimension to the next one, so it has no separate padding.
    tuple(int(i) if i != '*' else 1 for i in tile[1].split(','))
    if tile
    else (),
  )


def _bits(dtype: str) -> int:
  if dtype in _BITS:
    return _BITS[dtype]
  narrow = _NARROW_FLOAT.match(dtype)
  if not narrow:
    raise ValueError(f'unknown HLO element type {dtype!r}.')
  return int(narrow[1])
