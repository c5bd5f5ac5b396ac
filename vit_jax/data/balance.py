"""Counts how many examples of each class a view has."""

import itertools

import numpy as np

from vit_jax.data.source import View, read_labels

# The most records that are read for a count that nobody asked for.
_RECORDS = 100_000


def class_balance(view: View) -> np.ndarray:
  """Counts the examples of each class.

  This may read every record, but it decodes no image.

  Args:
    view: examples with one or several labels each.

  Returns:
    int64 [classes]. An example counts for each of its labels.

  Raises:
    ValueError: a label lies outside of the classes.
  """
  classes = view.source.info.num_classes
  labels = read_labels(view)
  if isinstance(labels, np.ndarray):
    rows, flat = None, labels
  else:
    lengths = [len(label) for label in labels]
    rows = np.repeat(np.arange(len(labels)), lengths)
    flat = np.fromiter(itertools.chain(*labels), np.int64, sum(lengths))
  wrong = flat[(flat < 0) | (flat >= classes)]
  if wrong.size:
    raise ValueError(
      f'{view.split!r} of {view.source.info.spec!r} has the label {wrong[0]},'
      f' but its labels must lie in [0, {classes}). Repair the data set.'
    )
  if rows is not None:  # An example counts once for a label that it repeats.
    flat = np.unique(rows * classes + flat) % classes
  return np.bincount(flat, minlength=classes)


def is_cheap(view: View) -> bool:
  """Returns False if a count would have to read many records."""
  split = view.selection.ranges[0].split
  return view.source.labels(split) is not None or len(view) <= _RECORDS


def describe(view: View, counts: np.ndarray | None) -> str:
  """Describes the classes in one line; `counts` is None if not counted."""
  if counts is None:
    return (
      f'classes not counted: that needs the labels of {len(view):,} examples'
      ' to be read.'
    )
  names = view.source.info.class_names
  (present,) = np.nonzero(counts)
  if not present.size:
    return f'0 of {len(counts):,} classes.'
  few = present[counts[present].argmin()]
  many = present[counts[present].argmax()]
  return (
    f'{len(present):,} of {len(counts):,} classes, with {counts[few]:,}'
    f' ({names[few]!r}) to {counts[many]:,} ({names[many]!r}) examples.'
  )
