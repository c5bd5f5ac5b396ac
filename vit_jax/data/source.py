"""The interface of a data set: records by index.

A `Source` knows its splits and reads one record of one split. A `View` is a
flat, random-access sequence of the records that a split expression
(`train[:98%]+validation`, `shuffled(train)[:10%]`) selects of a source. This
module decodes no image; `ops/` does.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from vit_jax.data import splits as splits_lib
from vit_jax.runtime import printable

# Number of labels that are read between two calls of `on_batch`.
_LABELS = 1024
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Record:
  """One example as it is stored.

  Attributes:
    image: an encoded image (JPEG, PNG, ...) as bytes, or uint8 [h, w, c].
    label: the class index, or a sequence of class indices for multi-label data.
    name: the example's origin for error messages (a file path or `train/17`);
      unprintable characters are escaped.
  """

  image: bytes | np.ndarray
  label: int | Sequence[int]
  name: str

  def __post_init__(self):
    object.__setattr__(self, 'name', printable.name(self.name))


@dataclasses.dataclass(frozen=True)
class SourceInfo:
  """The facts about a data set that are known before any record is read.

  Attributes:
    spec: the data spec of the data set, such as `folder:/data/flowers`.
    splits: number of examples of each split.
    class_names: one name per class; unprintable characters are escaped.
    multi_label: whether a record's label is a sequence.
    is_remote: whether each read is a round trip to a bucket.
  """

  spec: str
  splits: Mapping[str, int]
  class_names: tuple[str, ...]
  multi_label: bool = False
  is_remote: bool = False

  def __post_init__(self):
    names = tuple(map(printable.name, self.class_names))
    object.__setattr__(self, 'class_names', names)

  @property
  def num_classes(self) -> int:
    return len(self.class_names)


class Source:
  """A data set with random access. Must be picklable (worker processes).

  Attributes:
    info: the facts about it.
    others: what is not read, such as a suffix -> number of files.
    sorted_by_class: whether each split has its examples in order of the class.
  """

  info: SourceInfo
  others: Mapping[str, int] = {}
  sorted_by_class = False

  def read(self, split: str, index: int) -> Record:
    """Reads record `index` (0-based) of the named split, undecoded."""
    raise NotImplementedError

  def label(self, split: str, index: int) -> int | Sequence[int]:
    """Reads only the label; sources override this where it is cheaper."""
    return self.read(split, index).label

  def name(self, split: str, index: int) -> str:
    """Returns a record's name without a read; some sources override this."""
    return f'{split}/{index}'

  def labels(self, split: str) -> np.ndarray | None:
    """Returns the labels of a split, int32 [n]; None if reads are needed."""
    return None

  def facts(self, split: str) -> dict[str, Any]:
    """Returns facts about a split's files: JSON-able, equal for equal files."""
    return {}


class Labelled(Source):
  """A data set whose labels are known from the start.

  Subclasses set `_labels`: split -> int32 [n], or a list of tuples if records
  have several labels.
  """

  _labels: Mapping[str, np.ndarray | Sequence[tuple[int, ...]]]

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Returns the label without a read."""
    label = self._labels[split][index]
    return label if self.info.multi_label else int(label)

  def labels(self, split: str) -> np.ndarray | None:
    """Returns the labels of a split, int32 [n]; None if there are several."""
    return None if self.info.multi_label else self._labels[split]


class View:
  """The records of a split expression, in the order the expression gives."""

  def __init__(self, source: Source, split: str):
    """Resolves `split` against the source's splits.

    Raises:
      ValueError: the expression is malformed, names an unknown split, leaves a
        split's bounds, or selects nothing; the message lists the splits.
    """
    self.source = source
    self.split = split
    self.selection = splits_lib.resolve(split, source.info.splits)

  def __len__(self) -> int:
    return len(self.selection)

  def __getitem__(self, index: int) -> Record:
    return self.source.read(*self._place(index))

  def label(self, index: int) -> int | Sequence[int]:
    """Returns the label of a record, if possible without reading its image."""
    return self.source.label(*self._place(index))

  def name(self, index: int) -> str:
    """Returns a record's name, if possible without reading its image."""
    return self.source.name(*self._place(index))

  def labels(self) -> np.ndarray | None:
    """Returns all labels, int32 [len]; None if they would have to be read."""
    found = np.empty(len(self), np.int32)
    for split, indices, rows in self.selection.places(np.arange(len(self))):
      labels = self.source.labels(split)
      if labels is None:
        return None
      found[rows] = labels[indices]
    return found

  def _place(self, index: int) -> tuple[str, int]:
    """Returns the split and the index there."""
    if not 0 <= index < len(self):
      raise IndexError(
        f'{self.split!r} has {len(self)} records, and no record {index}.'
      )
    return self.selection.place(index)

  def shared(self, other: 'View') -> int:
    """Counts the records that are in both views; see `Selection.shared`.

    Views of different data specs count as disjoint, even if both specs read the
    same files.
    """
    if self.source.info.spec != other.source.info.spec:
      return 0
    return self.selection.shared(other.selection)


class Picked(View):
  """Some records of a view, by their indices; reads like a view."""

  def __init__(self, view: View, indices: Sequence[int]):
    self.source = view.source
    self._view, self._indices = view, [int(i) for i in indices]
    self.split = f'{len(self._indices)} of {view.split}'

  def __len__(self) -> int:
    return len(self._indices)

  def labels(self) -> np.ndarray | None:
    labels = self._view.labels()
    return None if labels is None else labels[self._indices]

  def _place(self, index: int) -> tuple[str, int]:
    return self._view._place(self._indices[index])


def read_labels(
  view: View, on_batch: Callable[[], None] = lambda: None
) -> np.ndarray | list[Sequence[int]]:
  """Reads the labels of all records, in order; decodes no image.

  Args:
    view: the records, a `View` or `Picked`.
    on_batch: called after each batch of labels, since reading may take long.

  Returns:
    int32 [len]; or a list of sequences, if records have several labels.
  """
  known = view.labels()
  if known is not None:
    on_batch()
    return known
  labels = []
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    for start in range(0, len(view), _LABELS):
      indices = range(start, min(start + _LABELS, len(view)))
      labels += pool.map(view.label, indices)
      on_batch()
  if all(np.ndim(label) == 0 for label in labels):
    return np.array(labels, np.int32)
  return labels
