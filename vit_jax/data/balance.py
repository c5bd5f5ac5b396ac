"""How many examples of each class a view has."""

import itertools
from collections.abc import Callable

import numpy as np

from vit_jax.data.source import View, read_labels

# Records that are read to count their labels, without being asked to.
_RECORDS = 100_000


def class_balance(
  view: View, on_batch: Callable[[], None] = lambda: None
) -> np.ndarray:
  """Counts the examples of each class; decodes no image, but may read all.

  Args:
    view: with one label an example, or several.
    on_batch: called after some of them, as it may take long.

  Returns:
    int64 [classes]. An example counts for each of its labels.

  Raises:
    ValueError: a label that is no class.
  """
  classes = view.source.info.num_classes
  labels = read_labels(view, on_batch)
  if isinstance(labels, np.ndarray):
    rows, flat = None, labels
  else:
    lengths = [len(label) for label in labels]
    rows = np.repeat(np.arange(len(labels)), lengths)
    flat = np.fromiter(itertools.chain(*labels), np.int64, sum(lengths))
  wrong = flat[(flat < 0) | (flat >= classes)]
  if wrong.size:
    raise ValueError(
      f'{view.source.info.spec!r} {view.split!r} has the label {wrong[0]},'
      f' but {classes} classes.'
    )
  if rows is not None:  # The same label twice is one.
    flat = np.unique(rows * classes + flat) % classes
  return np.bincount(flat, minlength=classes)


def is_cheap(view: View) -> bool:
  """Whether to count without being asked: no, if many records must be read."""
  return hasattr(view.source, 'labels') or len(view) <= _RECORDS


def describe(view: View, counts: np.ndarray | None) -> str:
  """One line on the classes of a view; `counts` None: they were not counted."""
  if counts is None:
    return (
      f'classes not counted: the labels of {len(view):,} examples would have'
      ' to be read.'
    )
  names = view.source.info.class_names
  (present,) = np.nonzero(counts)
  line = f'{len(present):,} of {len(counts):,} classes'
  if not present.size:
    return f'{line}.'
  few = present[counts[present].argmin()]
  many = present[counts[present].argmax()]
  return (
    f'{line}, with {counts[few]:,} ({names[few]!r}) to {counts[many]:,}'
    f' ({names[many]!r}) examples.'
  )
