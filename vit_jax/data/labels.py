"""Numbers the labels of data whose files may state no classes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

# The label of records without one in some data sets of the Hugging Face Hub.
_NONE = (-1, None)


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
    place = next(
      (i for i, (a, b) in enumerate(zip(names, found, strict=False)) if a != b),
      min(len(names), len(found)),
    )
    mine, other = (
      repr(of[place]) if place < len(of) else 'missing' for of in (names, found)
    )
    raise ValueError(
      f'{where} has other class names than what comes before it: class {place}'
      f' is {other} here and {mine} there. Write all of it with one list of'
      ' classes.'
    )
  return names or found


def number(
  labels: Mapping[str, Sequence],
  names: Sequence[str] | None,
  num_classes: int | None,
  spec: str,
) -> Numbered:
  """Makes class indices of labels.

  A split without any label, such as a hidden test set, is left out.

  Args:
    labels: split -> the label of each record: a whole number, a text, or a list
      of these.
    names: the class names; None takes them from the labels.
    num_classes: number of classes if numbers have no names; None is the largest
      number that occurs, plus one.
    spec: the data spec, for error messages.

  Raises:
    ValueError: a label is missing, of another type, or no class.
  """
  without = [k for k, of in labels.items() if _is_unlabelled(k, of, spec)]
  others = {
    f'records of split {split}, which has no labels': len(labels[split])
    for split in without
  }
  labels = {k: of for k, of in labels.items() if k not in without}
  multi = any(isinstance(one, list) for of in labels.values() for one in of)
  known = set()
  for of in labels.values():
    known.update(x for one in of for x in one) if multi else known.update(of)
  kinds = sorted({type(one).__name__ for one in known})
  if kinds == ['str']:
    names = list(names or sorted(known))
    places = {name: place for place, name in enumerate(names)}
  elif kinds == ['int']:
    count = len(names or ()) or num_classes or max(known) + 1
    names = list(names or map(str, range(count)))
    places = {place: place for place in range(count)}
  else:
    raise ValueError(
      f'{spec}: labels are of type {", ".join(kinds) or "none"}; expected whole'
      ' numbers or texts. Remove rows without a label, or choose another column'
      ' by label_key.'
    )
  if unknown := known - set(places):
    raise ValueError(
      f'{spec}: the label {min(unknown)!r} is none of the {len(names):,}'
      f' classes ({names[0]!r} to {names[-1]!r}).'
    )
  if multi:
    found = {
      split: [tuple(places[x] for x in one) for one in of]
      for split, of in labels.items()
    }
  else:
    found = {
      split: np.array([places[one] for one in of], np.int32)
      for split, of in labels.items()
    }
  return Numbered(found, tuple(names), multi, others)


def _is_unlabelled(split: str, labels: Sequence, spec: str) -> bool:
  if any(label not in _NONE for label in labels):
    return False
  logging.warning(
    '%s: the %d records of split %r have no label, and are not read.',
    *(spec, len(labels), split),
  )
  return True
