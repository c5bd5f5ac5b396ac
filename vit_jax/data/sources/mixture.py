"""`mix:SPEC@WEIGHT+SPEC@WEIGHT`: several data sets as one, by weights.

  mix:folder:/data/birds@0.7+tfds:cifar10@0.3

A weight is a data set's share of the examples. One epoch is the shortest in
which every example of every data set occurs; those of smaller data sets occur
again, equally often up to one. So an epoch is a fixed list, like that of any
data set: the global shuffle, exact resumption and slices work on it.

Classes of the same name are one class. The classes are those of the first data
set, then the others' new ones.
"""

import collections
import math
from collections.abc import Callable

import numpy as np

from vit_jax.data import identity, permutation, source


class Mixture(source.Source):
  """Records of several sources: all of the first, then those of the next."""

  def __init__(self, text: str, open_part: Callable[[str], source.Source]):
    """Opens the parts.

    Args:
      text: what follows `mix:`.
      open_part: opens a data spec.

    Raises:
      ValueError: `text` has another form, a weight is not positive, or the
        parts have no split in common.
    """
    spec = f'mix:{text}'
    specs, self._weights = parse(text)
    self._parts = [open_part(one) for one in specs]
    shared = set.intersection(*(set(p.info.splits) for p in self._parts))
    names = list(
      dict.fromkeys(n for part in self._parts for n in part.info.class_names)
    )
    places = {name: place for place, name in enumerate(names)}
    self._classes = [
      np.array([places[n] for n in part.info.class_names], np.int32)
      for part in self._parts
    ]
    # Split -> where the records of each part end, int64 [parts].
    self._ends = {
      split: np.cumsum(self._counts(split))
      for split in self._parts[0].info.splits
      if split in shared
    }
    if not self._ends:
      splits = {p.info.spec: list(p.info.splits) for p in self._parts}
      raise ValueError(
        f'{spec}: no split occurs in all of its data sets; they have {splits}.'
      )
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: int(ends[-1]) for split, ends in self._ends.items()},
      class_names=tuple(names),
      multi_label=any(part.info.multi_label for part in self._parts),
      is_remote=any(part.info.is_remote for part in self._parts),
    )
    self.others = collections.Counter()
    for part in self._parts:
      self.others.update(part.others)

  def _counts(self, split: str) -> list[int]:
    """Returns how many records of each part are in an epoch of a split."""
    sizes = [part.info.splits[split] for part in self._parts]
    total = max(n / w for n, w in zip(sizes, self._weights, strict=True))
    # Rounding up never loses the last record of the largest part.
    return [
      max(n, round(w * total))
      for n, w in zip(sizes, self._weights, strict=True)
    ]

  def read(self, split: str, index: int) -> source.Record:
    """Reads a record of the part that holds it."""
    part, place = self._place(split, index)
    record = self._parts[part].read(split, place)
    return source.Record(
      record.image, self._label(part, record.label), record.name
    )

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Returns the label, if possible without reading the image."""
    part, place = self._place(split, index)
    return self._label(part, self._parts[part].label(split, place))

  def name(self, split: str, index: int) -> str:
    """Returns the name of the record in its own data set."""
    part, place = self._place(split, index)
    return self._parts[part].name(split, place)

  def labels(self, split: str) -> np.ndarray | None:
    """Returns the labels of a split, int32 [n], if all parts know them."""
    found = []
    for number, part in enumerate(self._parts):
      labels = part.labels(split)
      if labels is None:
        return None
      start, end = self._range(split, number)
      rows = self._rows(split, number, np.arange(end - start))
      found.append(self._classes[number][np.asarray(labels)[rows]])
    return np.concatenate(found)

  def facts(self, split: str) -> dict[str, str]:
    """Returns the parts' facts, and what the parts contribute."""
    found = {'records of each part': identity.short_hash(self._ends[split])}
    for part in self._parts:
      facts = part.facts(split)
      found |= {f'{part.info.spec}: {k}': v for k, v in facts.items()}
    return found

  def _range(self, split: str, part: int) -> tuple[int, int]:
    """Returns where the records of a part begin and end in a split."""
    ends = self._ends[split]
    return int(ends[part - 1]) if part else 0, int(ends[part])

  def _place(self, split: str, index: int) -> tuple[int, int]:
    """Returns the part that holds a record, and the record's index there."""
    part = int(np.searchsorted(self._ends[split], index, side='right'))
    inside = np.array([index - self._range(split, part)[0]])
    return part, int(self._rows(split, part, inside)[0])

  def _rows(self, split: str, part: int, inside: np.ndarray) -> np.ndarray:
    """Returns the records of a part that occur at some places of an epoch.

    First come all records in their order, as often as they all occur. A random
    part of them, which the place of the data set in the mixture fixes, occurs
    once more.
    """
    size = self._parts[part].info.splits[split]
    start, end = self._range(split, part)
    rest = inside >= (end - start) // size * size
    rows = inside % size
    rows[rest] = permutation.permute(rows[rest], size, part)
    return rows

  def _label(self, part: int, label) -> int | tuple[int, ...]:
    classes = self._classes[part]
    if np.ndim(label):
      return tuple(int(classes[one]) for one in label)
    label = int(classes[label])
    return (label,) if self.info.multi_label else label


def parse(text: str) -> tuple[list[str], list[float]]:
  """Returns the data specs of a mixture, and their weights, which add up to 1.

  Args:
    text: what follows `mix:`.

  Raises:
    ValueError: `text` has another form, or a weight is not positive.
  """
  specs, weights = [], []
  for part in text.split('+'):
    one, at, weight = part.rpartition('@')
    try:
      number = float(weight)
    except ValueError:
      number = math.nan
    if not at or not one or not 0 < number < math.inf:
      raise ValueError(
        f'mix:{text}: {part!r} is not SPEC@WEIGHT with a positive weight;'
        ' expected, for example, mix:folder:/data/birds@0.7+tfds:cifar10@0.3. A'
        ' list of exclusions belongs to a data set: SPEC,exclude=FILE@WEIGHT.'
      )
    specs.append(one)
    weights.append(number)
  return specs, [weight / sum(weights) for weight in weights]
