"""A fixed pseudo-random order of any number of records, computed by index.

`permute(i, size, seed)` is the i-th record of the order. Nothing is stored, so
303 million records cost as much as ten. An index goes through a Feistel network
over the next power of two, repeatedly until the result is below `size` (cycle
walking). This is a bijection for any round function.

Sources: Luby and Rackoff, 1988 (Feistel network); Black and Rogaway, 2002,
section 3 (cycle walking); Steele, Lea and Flood, 2014 (SplitMix64, the round
function).

Each epoch of training reads its records in its own order (`epoch_seed`),
and a random part of a split is a slice of such an order.

All arithmetic is on integers modulo 2**64, so an order is the same on all
machines and with all versions of NumPy. Do not change it: reported results
depend on its subsets, and resumed runs continue in its order.
"""

import functools

import numpy as np

# Four rounds make a Feistel network pseudo-random if there are many indices.
# With few indices, more rounds are better.
_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
SEEDS = 2**32  # Seeds that users choose must be below.


def permute(index: int | np.ndarray, size: int, seed: int) -> int | np.ndarray:
  """Returns the records at some positions of the order.

  Args:
    index: 0-based positions below `size`, an integer or int64 of any shape.
    size: number of records, at least 1, below 2**63.
    seed: seed of the order, in [0, 2**64).

  Returns:
    0-based indices of records, of the type of `index`. Different positions have
    different records.
  """
  bits, rounds = (size - 1).bit_length(), _keys(seed)
  if not isinstance(index, np.ndarray):
    index = _network(int(index), bits, rounds)
    while index >= size:
      index = _network(index, bits, rounds)
    return index
  result = _network(index.astype(np.uint64), bits, rounds)
  while (outside := result >= size).any():
    result[outside] = _network(result[outside], bits, rounds)
  return result.astype(np.int64)


def epoch_seed(seed: int, epoch: int) -> int:
  """Returns the seed of an epoch's order, in [0, 2**64).

  A hash prevents that epoch 1 of a run equals epoch 0 of a run with the next
  seed.

  Args:
    seed: seed of the run, 0 or more.
    epoch: 0-based.
  """
  return _mix(_mix(seed + _GOLDEN & _MASK) + epoch * _GOLDEN & _MASK)


def _network(x, bits, rounds):
  """Applies a bijection of [0, 2**bits) to an integer or a uint64 array."""
  low = bits // 2
  low_mask, high_mask = 2**low - 1, 2 ** (bits - low) - 1
  left, right = x >> low, x & low_mask
  for number, key in rounds:
    # The halves take turns to change by a function of the other half, so the
    # same rounds in the opposite order would undo it.
    if number % 2:
      right = right ^ (_mix(left + key & _MASK) & low_mask)
    else:
      left = left ^ (_mix(right + key & _MASK) & high_mask)
  return left << low | right


def _mix(x):
  """Returns SplitMix64's hash of 64 bits."""
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
  x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
  return x ^ x >> 31


@functools.lru_cache(1024)
def _keys(seed: int) -> tuple[tuple[int, int], ...]:
  """Returns the rounds' numbers and keys: SplitMix64 from a hashed seed."""
  start = _mix(seed + _GOLDEN & _MASK)
  return tuple(
    (i, _mix(start + (i + 1) * _GOLDEN & _MASK)) for i in range(_ROUNDS)
  )
