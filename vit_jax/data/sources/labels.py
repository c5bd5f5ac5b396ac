"""Numbers the labels of data whose files may state no classes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

# The label of records without one in some data sets of the Hugging Face Hub.
_NONE = (-1, None)
# The largest head that `models` builds. An id in place of a label can be any
# number, and the names of 2**31 classes take 100 GB and more.
MOST_CLASSES = 2**24


class Numbered(NamedTuple):
  """Labels as class indices.

  Attributes:
    labels: split -> int32 [records], or a list of tuples if `multi`.
    names: the class names.
    multi: whether records have several labels.
    others: what is left out -> number of records.
  """

  labels: dict[str, np.ndarray | list[tuple[int, ...]]]
  names: tuple[str, ...]
  multi: bool
  others: dict[str, int]


def same_names(
  names: Sequence[str] | None, found: Sequence[str] | None, where: str
) -> Sequence[str] | None:
  """Returns the class names of several files or splits.

  Args:
    names: those of the ones before; None if they state none.
    found: those of the next one; None if it states none.
    where: the next one, for the error message.

  Raises:
    ValueError: both differ: then the same number means different classes.
  """
  if names and found and list(names) != list(found):
    pairs = itertools.zip_longest(names, found)
    place, mine, other = next(
      (i, a, b) for i, (a, b) in enumerate(pairs) if a != b
    )
    raise ValueError(
      f'{where} has other class names than what comes before it: class {place}'
      f' is {other!r} here and {mine!r} there. Write all of it with one list of'
      ' classes.'
    )
  return names or found


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


def number(
  labels: Mapping[str, Sequence],
  names: Sequence[str] | None,
  num_classes: int | None,
  where: str,
) -> Numbered:
  """Makes class indices of labels.

  A split without any label, such as a hidden test set, is left out.

  Args:
    labels: split -> the label of each record: a whole number, a text, or a list
      of these.
    names: the class names; None takes them from the labels.
    num_classes: number of classes if numbers have no names; None is the largest
      number that occurs, plus one.
    where: the data spec and the column of the labels, for error messages.

  Raises:
    ValueError: a label is missing, of another type, or no class; or there are
      more than MOST_CLASSES.
  """
  labelled, others = {}, {}
  for split, of in labels.items():
    if any(label not in _NONE for label in of):
      labelled[split] = of
      continue
    others[f'records of split {split}, which has no labels'] = len(of)
    logging.warning(
      '%s: the %d records of split %r have no label, and are not read.',
      *(where, len(of), split),
    )
  multi = any(isinstance(one, list) for of in labelled.values() for one in of)
  known = set()
  for of in labelled.values():
    known.update(x for one in of for x in one) if multi else known.update(of)
  kinds = sorted({type(one).__name__ for one in known})
  if kinds == ['str']:
    names = list(names or sorted(known))
    places = {name: place for place, name in enumerate(names)}
  elif kinds == ['int']:
    count = num_classes or max(0, max(known)) + 1
    names = list(names or index_names(count, where))
    places = range(len(names))
  else:
    raise ValueError(
      f'{where}: labels are of type {", ".join(kinds) or "none"}; expected'
      ' whole numbers or texts. Remove rows without a label, or choose another'
      ' column by label_key.'
    )
  if unknown := [x for x in known if x not in places]:
    raise ValueError(
      f'{where}: the label {min(unknown)!r} is none of the {len(names):,}'
      f' classes ({names[0]!r} to {names[-1]!r}).'
    )
  if multi:
    found = {
      split: [tuple(places[x] for x in one) for one in of]
      for split, of in labelled.items()
    }
  else:
    found = {
      split: np.array([places[one] for one in of], np.int32)
      for split, of in labelled.items()
    }
  return Numbered(found, tuple(names), multi, others)
