"""A fixed pseudo-random order of any number of records, computed by index.

`permute(i, size, seed)` is the i-th record of the order. Nothing is stored, so
that 303 million records cost what ten do: an index goes through a Feistel
network over the next power of two, and again until it is below `size` (cycle
walking). Both keep it a bijection, whatever the function of the rounds is.

Luby and Rackoff, 1988 (the network); Black and Rogaway, 2002, section 3 (the
walk); Steele, Lea and Flood, 2014 (SplitMix64, the function of the rounds).

Training goes through its records in such an order, another one each epoch
(`epoch_seed`), and random parts of a split are slices of one.

Only integers modulo 2**64 are computed with, so that an order is the same on
all machines and with all versions of NumPy. It defines subsets that results
are reported on, and what a resumed run sees: do not change it.
"""

import functools

import numpy as np

# Of the network. Four make it pseudo-random for many indices; the more, the
# better for few.
_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
SEEDS = 2**32  # Those that users may choose are below.


def permute(index: int | np.ndarray, size: int, seed: int) -> int | np.ndarray:
  """The records at some places of the order.

  Args:
    index: 0-based places below `size`, an integer or int64 of any shape.
    size: number of records, at least 1, below 2**63.
    seed: of the order, in [0, 2**64).

  Returns:
    0-based indices of records, of the type of `index`: different ones for
    different places.
  """
  return _walk(index, size, _keys(seed))


def invert(index: int | np.ndarray, size: int, seed: int) -> int | np.ndarray:
  """The places of some records in the order: undoes `permute`."""
  return _walk(index, size, _keys(seed)[::-1])


def epoch_seed(seed: int, epoch: int) -> int:
  """The seed of an epoch's order, in [0, 2**64).

  Hashed, so that epoch 1 of a run is not epoch 0 of the run with the next seed.

  Args:
    seed: of the run, 0 or more.
    epoch: 0-based.
  """
  return _mix(_mix(seed + _GOLDEN & _MASK) + epoch * _GOLDEN & _MASK)


def _walk(index, size, rounds):
  bits = (size - 1).bit_length()
  if not isinstance(index, np.ndarray):
    index = _network(int(index), bits, rounds)
    while index >= size:
      index = _network(index, bits, rounds)
    return index
  result = _network(index.astype(np.uint64), bits, rounds)
  while (outside := result >= size).any():
    result[outside] = _network(result[outside], bits, rounds)
  return result.astype(np.int64)


def _network(x, bits, rounds):
  """A bijection of [0, 2**bits); for integers and uint64 arrays alike."""
  low = bits // 2
  low_mask, high_mask = 2**low - 1, 2 ** (bits - low) - 1
  left, right = x >> low, x & low_mask
  for number, key in rounds:
    # Each half in turn is changed by a function of the other: undone by the
    # same rounds in the opposite order.
    if number % 2:
      right = right ^ (_mix(left + key & _MASK) & low_mask)
    else:
      left = left ^ (_mix(right + key & _MASK) & high_mask)
  return left << low | right


def _mix(x):
  """SplitMix64's hash of 64 bits."""
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
  x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
  return x ^ x >> 31


@functools.lru_cache(1024)
def _keys(seed: int) -> tuple[tuple[int, int], ...]:
  """The rounds' numbers and keys: SplitMix64's stream from a hashed seed."""
  start = _mix(seed + _GOLDEN & _MASK)
  return tuple(
    (i, _mix(start + (i + 1) * _GOLDEN & _MASK)) for i in range(_ROUNDS)
  )
