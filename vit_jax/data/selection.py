"""Represents the records that a split expression selects, without a list.

A `Selection` is a sequence of parts. A part is a `Range` of a split's records,
or a `Shuffled` range of another selection in a pseudo-random order.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vit_jax.data import permutation

# `shared` compares up to this many records one by one; for more, it returns a
# bound.
_LISTED = 2**24


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
  def shuffled(self) -> bool:
    """Whether any part is in pseudo-random order."""
    return any(isinstance(part, Shuffled) for part in self.parts)

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
    return sum(
      part.inner.whole if isinstance(part, Shuffled) else part.stop - part.start
      for part in self.parts
    )

  def place(self, index: int) -> tuple[str, int]:
    """Returns the split of record `index` in [0, len), and its index there."""
    number = int(np.searchsorted(self._ends, index, side='right'))
    part = self.parts[number]
    inside = part.stop - int(self._ends[number]) + int(index)
    if isinstance(part, Range):
      return part.split, inside
    inner = part.inner
    return inner.place(permutation.permute(inside, len(inner), part.seed))

  def records(self) -> dict[str, np.ndarray]:
    """Returns the distinct indices of each split, int64, ascending."""
    found = collections.defaultdict(list)
    for split, indices, _ in self.places(np.arange(len(self))):
      found[split].append(indices)
    return {
      split: np.unique(np.concatenate(arrays))
      for split, arrays in found.items()
    }

  def places(
    self, indices: np.ndarray
  ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields what `place` returns, for many records at once.

    Args:
      indices: int64 [n], each in [0, len).

    Yields:
      A split, m indices there, int64 [m], and their positions among the n,
      int64 [m].
    """
    yield from self._places(indices, np.arange(len(indices)))

  def _places(
    self, indices: np.ndarray, rows: np.ndarray
  ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    numbers = np.searchsorted(self._ends, indices, side='right')
    for number, part in enumerate(self.parts):
      of_part = numbers == number
      inside = indices[of_part] + part.stop - self._ends[number]
      if isinstance(part, Range):
        yield part.split, inside, rows[of_part]
      else:
        inner = part.inner
        yield from inner._places(
          permutation.permute(inside, len(inner), part.seed), rows[of_part]
        )

  def shared(self, other: 'Selection') -> int:
    """Counts the distinct records that are in both selections.

    The count is exact for two slices of the same split or of the same shuffled
    expression, and if neither selection has more than 2**24 records. Otherwise
    it is an upper bound: it may count repeated records again, and assumes that
    a shuffled part holds as many records of the other selection as possible.
    """
    bound = min(
      len(self),
      len(other),
      sum(_bound(a, b) for a in self.parts for b in other.parts),
    )
    one_each = len(self.parts) == len(other.parts) == 1
    if not bound or (one_each and _comparable(self.parts[0], other.parts[0])):
      return bound
    if max(len(self), len(other)) > _LISTED:
      return bound
    mine, others = self.records(), other.records()
    return sum(
      len(np.intersect1d(mine[split], others[split], assume_unique=True))
      for split in mine.keys() & others.keys()
    )

  def may_overlap(self, other: 'Selection') -> bool:
    """Returns whether both may share a record, judged by the expressions.

    Parts of different random orders of the same records may share one. Slices
    of the same random order do if their places overlap.
    """
    return any(_bound(a, b) for a in self.parts for b in other.parts)

  @functools.cached_property
  def _repeats(self) -> bool:
    """Whether a record may be selected more than once."""
    return any(
      _bound(a, b) for i, a in enumerate(self.parts) for b in self.parts[:i]
    ) or any(
      part.inner._repeats for part in self.parts if isinstance(part, Shuffled)
    )


def _comparable(a: Range | Shuffled, b: Range | Shuffled) -> bool:
  """Returns whether two parts are ranges of the same sequence of records."""
  if isinstance(a, Range) or isinstance(b, Range):
    return isinstance(a, Range) and isinstance(b, Range) and a.split == b.split
  return (a.inner, a.seed) == (b.inner, b.seed) and not a.inner._repeats


def _bound(a: Range | Shuffled, b: Range | Shuffled) -> int:
  """Returns the most records that two parts can share."""
  if _comparable(a, b):
    return max(0, min(a.stop, b.stop) - max(a.start, b.start))
  if isinstance(a, Range) and isinstance(b, Range):
    return 0  # The ranges are in different splits.
  # A random part may hold any of the records from which it is taken.
  a_parts, b_parts = (
    part.inner.parts if isinstance(part, Shuffled) else (part,)
    for part in (a, b)
  )
  return min(
    a.stop - a.start,
    b.stop - b.start,
    sum(_bound(x, y) for x in a_parts for y in b_parts),
  )
