"""Numbers the labels of data whose files may state no classes."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from vit_jax.data import identity, source

# The label of records without one in some data sets of the Hugging Face Hub.
_NONE = (-1, None)
# The largest head that `models` builds. An id in place of a label can be any
# number, and the names of 2**31 classes take 100 GB and more.
MOST_CLASSES = 2**24


class Numbered(source.Labelled):
  """A data set whose labels are numbers or texts, which become class indices.

  A split without any label, such as a hidden test set, is left out.
  """

  def __init__(
    self,
    spec: str,
    labels: Mapping[str, Sequence],
    names: Sequence[str] | None,
    *,
    num_classes: int | None = None,
    key: str = '',
    is_remote: bool = False,
  ):
    """Numbers the labels.

    Args:
      spec: the data spec.
      labels: split -> the label of each record: a whole number, a text, or a
        list of these.
      names: the class names; None takes them from the labels.
      num_classes: number of classes if numbers have no names; None is the
        largest number that occurs, plus one.
      key: the label_key, for error messages.
      is_remote: see `SourceInfo`.

    Raises:
      ValueError: a label is missing, of another type, or no class; or there are
        more than MOST_CLASSES.
    """
    where = f'{spec}: label_key={key!r}' if key else spec
    labels, self.others = dict(labels), {}
    for split, of in list(labels.items()):
      if all(label in _NONE for label in of):
        what = f'records of split {split}, which has no labels'
        self.others[what] = len(labels.pop(split))
        logging.warning('%s: %d %s, are not read.', where, len(of), what)
    multi = any(isinstance(one, list) for of in labels.values() for one in of)
    known = set()
    for of in labels.values():
      known.update(itertools.chain.from_iterable(of) if multi else of)
    kinds = sorted({type(one).__name__ for one in known})
    if kinds == ['str']:
      names = tuple(names or sorted(known))
      places = {name: place for place, name in enumerate(names)}
    elif kinds == ['int']:
      count = num_classes or max(0, max(known)) + 1
      names = tuple(names or index_names(count, where))
      places = range(len(names))
    else:
      raise ValueError(
        f'{where}: labels are of type {", ".join(kinds) or "none"}; expected'
        ' whole numbers or texts. Remove rows without a label, or choose'
        ' another column by label_key.'
      )
    if unknown := [x for x in known if x not in places]:
      raise ValueError(
        f'{where}: the label {min(unknown)!r} is none of the {len(names):,}'
        f' classes ({names[0]!r} to {names[-1]!r}).'
      )
    self._labels = {
      split: [tuple(places[x] for x in one) for one in of]
      if multi
      else np.array([places[one] for one in of], np.int32)
      for split, of in labels.items()
    }
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: len(of) for split, of in self._labels.items()},
      class_names=names,
      multi_label=multi,
      is_remote=is_remote,
    )

  def facts(self, split: str) -> dict[str, str]:
    """Returns a digest of the labels."""
    labels = self._labels[split]
    if self.info.multi_label:
      labels = [*map(list, labels)]
    return {'labels': identity.short_hash(labels)}


def index_names(count: int, where: str) -> list[str]:
  """Returns the names of classes that have none: '0', '1', ...

  Args:
    count: number of classes.
    where: the data spec, and the column of the labels, for the error message.

  Raises:
    ValueError: there are more than MOST_CLASSES.
  """
  if count > MOST_CLASSES:
    raise ValueError(
      f'{where}: classes up to the label {count - 1} are more than the'
      f' {MOST_CLASSES:,} that a model may have. If the labels are ids, choose'
      ' another column by label_key, or write class names or the numbers from'
      ' 0; otherwise correct num_classes.'
    )
  return list(map(str, range(count)))
