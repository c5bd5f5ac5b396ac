"""Makes batches of records: each host's rows of the global batches.

These are the functions to call. `batches/rows.py` says which record, random
numbers and pixels a row has; `batches/loader.py` has the threads and worker
processes that make rows ahead of time.

A batch is a dict of arrays with b = len(rows) rows per host:

  image: uint8 [b, H, W, C].
  label: int32 [b]; or int32 [b, max_labels], padded with -1, if records have a
    sequence of labels or `max_labels` is more than 1.
  mask: bool [b], False for a row that must not count; its image is zeros and
    its label -1.
  unreadable: bool [b], True where a record's image could not be decoded.
  truncated: bool [b], only if `max_labels` is more than 1: True where a record
    has more labels than that; the first ones in stored order are kept.
"""

from vit_jax.data import ops
from vit_jax.data.batches.loader import Batches
from vit_jax.data.batches.rows import Reading, Records, Rows


def train_batches(
  view: Records,
  preprocess: ops.Preprocess,
  *,
  batch_size: int,
  seed: int,
  start_step: int = 0,
  repeats: int = 1,
  **reading,
) -> Batches:
  """Returns this host's rows of global batches start_step, start_step + 1, ...

  Epochs follow each other without a gap, each in a different order: a batch may
  hold the end of one epoch and the beginning of the next. No row is masked.

  Args:
    view: the records; picklable if there are workers.
    preprocess: turns a record's image into that of a row.
    batch_size: rows of the global batch.
    seed: seed of the order and the augmentation, 0 or more.
    start_step: step of the first batch, 0 or more.
    repeats: how often each record comes in a batch, see `rows.spread`.
    **reading: see `Reading`; `num_classes` must be given.

  Raises:
    ValueError: at once if the arguments contradict each other; from the
      iterator if an image or a label is wrong, with the name of the record.
    ReadError: from the iterator if the source failed to read a record. The
      policy `unreadable` does not apply to it.
  """
  how = Reading(**reading)
  rows = Rows(
    *(view, preprocess, how, batch_size),
    **{'seed': seed, 'start_step': start_step, 'train': True},
    repeats=repeats,
  )
  return Batches(rows, None, how)


def eval_batches(
  view: Records, preprocess: ops.Preprocess, *, batch_size: int, **reading
) -> Batches:
  """Returns this host's rows of all examples, each once, in the view's order.

  Every host gets `num_eval_batches` batches. Rows past the last example have
  the mask False. With unreadable='skip-and-count', so have unreadable images,
  and their `unreadable` is True. Over all hosts, rows with the mask True and
  unreadable rows add up to the number of records of the view.

  Arguments and errors are those of `train_batches`.
  """
  how = Reading(**reading)
  rows = Rows(view, preprocess, how, batch_size)
  return Batches(rows, num_eval_batches(view, batch_size), how)


def check_first_record(
  view: Records, preprocess: ops.Preprocess, **reading
) -> None:
  """Makes one row, so that an error that affects all rows shows at once.

  A run calls this for all its splits before training: otherwise, hours could
  pass until an evaluation fails whose crop is larger than its images.

  Raises:
    ValueError, ReadError: see `train_batches`.
  """
  Rows(view, preprocess, Reading(**reading), batch_size=1)(0, 0)


def num_eval_batches(view: Records, batch_size: int) -> int:
  """Returns how many batches of `batch_size` rows hold the whole view."""
  return -(-len(view) // max(1, batch_size))
