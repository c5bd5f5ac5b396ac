"""Represents the records that a split expression selects, without a list.

A `Selection` is a sequence of parts. A part is a `Range` of a split's records,
or a `Shuffled` range of another selection in a pseudo-random order.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vit_jax.data import permutation


class Range(NamedTuple):
  """Records start to stop - 1 of a split, at least one."""

  split: str
  start: int
  stop: int


@dataclasses.dataclass(frozen=True)
class Shuffled:
  """Places start to stop - 1 of a selection in pseudo-random order."""

  inner: 'Selection'
  seed: int
  start: int
  stop: int


@dataclasses.dataclass(frozen=True)
class Selection:
  """Consecutive parts; `len` is the number of their records. Hashable."""

  parts: tuple[Range | Shuffled, ...]

  @functools.cached_property
  def _ends(self) -> np.ndarray:
    """Where each part ends, int64 [parts]."""
    return np.cumsum([part.stop - part.start for part in self.parts])

  def __len__(self) -> int:
    return int(self._ends[-1])

  @property
  def ranges(self) -> list[Range]:
    """All ranges, including those from which shuffled parts are taken."""
    found = []
    for part in self.parts:
      found += [part] if isinstance(part, Range) else part.inner.ranges
    return found

  @property
  def whole(self) -> int:
    """The number of records from which the parts are taken.

    A shuffled part counts with all records that are shuffled, any other part
    with its own records.
    """
    return sum(stop - start for _, start, stop in self.ranges)

  def place(self, index: int) -> tuple[str, int]:
    """Returns the split of record `index` in [0, len), and its index there."""
    number = int(np.searchsorted(self._ends, index, side='right'))
    part = self.parts[number]
    inside = part.stop - int(self._ends[number]) + int(index)
    if isinstance(part, Range):
      return part.split, inside
    inner = part.inner
    return inner.place(permutation.permute(inside, len(inner), part.seed))

  def places(
    self, indices: np.ndarray, rows: np.ndarray | None = None
  ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields what `place` returns, for many records at once.

    Args:
      indices: int64 [n], each in [0, len).
      rows: what to call each of them, int64 [n]; None is its position.

    Yields:
      A split, m indices there, int64 [m], and their rows, int64 [m].
    """
    rows = np.arange(len(indices)) if rows is None else rows
    numbers = np.searchsorted(self._ends, indices, side='right')
    for number, part in enumerate(self.parts):
      of_part = numbers == number
      inside = indices[of_part] + part.stop - self._ends[number]
      if isinstance(part, Range):
        yield part.split, inside, rows[of_part]
      else:
        inner = part.inner
        inside = permutation.permute(inside, len(inner), part.seed)
        yield from inner.places(inside, rows[of_part])

  def shared(self, other: 'Selection') -> int:
    """Returns the most records that both selections can share.

    The expressions decide, so that the answer is as fast for any size. It is
    exact for two slices of the same split or of the same shuffled expression.
    A part of another random order is assumed to hold as many records of the
    other selection as possible, and repeated records may count again.
    """
    pairs = itertools.product(self.parts, other.parts)
    return min(len(self), len(other), sum(_shared(a, b) for a, b in pairs))

  def _repeats(self) -> bool:
    """Returns whether a record may be selected more than once."""
    return any(
      _shared(a, b) for a, b in itertools.combinations(self.parts, 2)
    ) or any(
      part.inner._repeats() for part in self.parts if isinstance(part, Shuffled)
    )


def _shared(a: Range | Shuffled, b: Range | Shuffled) -> int:
  """Returns the most records that two parts can share."""
  if isinstance(a, Range) and isinstance(b, Range):
    same = a.split == b.split
    return max(0, min(a.stop, b.stop) - max(a.start, b.start)) if same else 0
  sizes = a.stop - a.start, b.stop - b.start
  a_from, b_from = (
    part.inner if isinstance(part, Shuffled) else Selection((part,))
    for part in (a, b)
  )
  orders = getattr(a, 'seed', None), getattr(b, 'seed', None)
  if a_from == b_from and orders[0] == orders[1] and not a_from._repeats():
    return max(0, min(a.stop, b.stop) - max(a.start, b.start))
  # A random part may hold any of the records from which it is taken.
  return min(*sizes, a_from.shared(b_from))
