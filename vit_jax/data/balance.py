"""How many examples of each class a view has."""

from collections.abc import Callable

import numpy as np

from vit_jax.data.source import Source, View, read_labels

# Records whose labels are counted without being asked for: those of a source
# that reads a label without its image, and those of others.
_LABELS = 10_000_000
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
  counts = np.zeros(view.source.info.num_classes, np.int64)
  labels = read_labels(view, on_batch)
  several = [np.unique(label) for label in labels]
  flat = np.concatenate(several) if several else np.zeros(0)
  flat = flat.astype(np.int64)  # Those of no label at all are of float64.
  wrong = flat[(flat < 0) | (flat >= len(counts))]
  if wrong.size:
    raise ValueError(
      f'{view.source.info.spec!r} {view.split!r} has the label {wrong[0]},'
      f' but {len(counts)} classes.'
    )
  np.add.at(counts, flat, 1)
  return counts


def is_cheap(view: View) -> bool:
  """Whether to count without being asked: see `_LABELS` and `_RECORDS`."""
  # What does not say how to read a label alone reads the record.
  own = getattr(type(view.source), 'label', Source.label)
  return len(view) <= (_RECORDS if own is Source.label else _LABELS)


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
