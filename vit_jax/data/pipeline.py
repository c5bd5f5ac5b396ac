"""Makes batches of records: each host's rows of the global batches.

The global batch of step k, including order and augmentation, is a pure function
of (seed, k). It depends neither on the number of hosts, threads and worker
processes nor on the step from which training resumed, so there is no iterator
state to save. Three things ensure this: the shuffle is a function of (seed,
epoch, position) (`permutation.py`); a row's random generator is a function of
(seed, row of the endless stream of epochs); and hosts pick their rows of a
global batch only after both are fixed.

`batches/load.py` makes a row of a record, `batches/rows.py` says which record a
row has, and `batches/loader.py` has the threads and worker processes.

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

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data import ops
from vit_jax.data.batches.cache import Cache
from vit_jax.data.batches.load import Load, View
from vit_jax.data.batches.loader import Batches
from vit_jax.data.batches.rows import Rows

# At 0.1 s a read, which is a bucket's, 5,000 images a second.
READ_AHEAD = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
  """How batches are made; no value changes a batch that has no bad record.

  Attributes:
    num_classes: labels must lie in [0, num_classes).
    max_labels: the most labels of a record that are kept; if 1, a record with
      more labels is an error.
    unreadable: 'error', or 'skip-and-count'. With the latter, in training, a
      record that the row's own generator draws replaces an unreadable one, and
      `unreadable` is True in that row; in evaluation, the row is masked.
    rows: the rows of a global batch that this host reads; None reads all. See
      `sharding.local_rows`.
    threads: number of threads that make a batch together; 0 makes it in the
      caller's thread. The default is the number of cores, at most 16. A worker
      has as many, by default one.
    workers: number of processes that make batches instead of this process. By
      default they start when the loop waits for batches and there is more than
      one core: one per core, at most 64.
    prefetch: number of batches that are in progress or waiting; by default two,
      or as many as keep all threads busy. This bounds the memory.
    read_ahead: number of records that are read at the same time, ahead of their
      decoding; 0: a thread reads a record when it decodes it. The default is 0,
      and READ_AHEAD if the source is remote.
    cache: where to keep decoded images; None decodes them each time.
    tell: whether images that cannot be read are logged.
  """

  num_classes: int
  max_labels: int = 1
  unreadable: str = 'error'
  rows: Sequence[int] | None = None
  threads: int | None = None
  workers: int | None = None
  prefetch: int | None = None
  read_ahead: int | None = None
  cache: Cache | None = None
  tell: bool = True

  def load(self, view: View, preprocess: ops.Preprocess) -> Load:
    """Returns what makes a row of a record."""
    return Load(
      view,
      preprocess,
      num_classes=self.num_classes,
      max_labels=self.max_labels,
      unreadable=self.unreadable,
      images=self.cache and self.cache.of(view, preprocess),
      tell=self.tell,
    )

  def batches(
    self,
    view: View,
    preprocess: ops.Preprocess,
    batch_size: int,
    count: int | None,
    **places,
  ) -> Batches:
    """Starts to make batches; `places` are further arguments of `Rows`."""
    if batch_size < 1:
      raise ValueError(f'batch_size={batch_size} must be positive')
    rows = range(batch_size) if self.rows is None else self.rows
    if not rows or min(rows) < 0 or max(rows) >= batch_size:
      raise ValueError(
        f'rows={rows} must be some of the batch_size={batch_size} rows of a '
        'global batch, numbered from 0'
      )
    read_ahead = self.read_ahead
    if read_ahead is None:
      source = getattr(view, 'source', None)
      read_ahead = READ_AHEAD if source and source.info.is_remote else 0
    load = self.load(view, preprocess)
    return Batches(
      Rows(load, len(view), batch_size, tuple(rows), **places),
      load.masked_row(),
      rows=len(rows),
      count=count,
      threads=self.threads,
      workers=self.workers,
      prefetch=self.prefetch,
      read_ahead=read_ahead,
    )


def train_batches(
  view: View,
  preprocess: ops.Preprocess,
  *,
  batch_size: int,
  seed: int,
  start_step: int = 0,
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
    **reading: see `Reading`; `num_classes` must be given.

  Raises:
    ValueError: at once if the arguments contradict each other; from the
      iterator if an image or a label is wrong, with the name of the record.
    ReadError: from the iterator if the source failed to read a record. The
      policy `unreadable` does not apply to it.
  """
  if start_step < 0 or seed < 0:
    raise ValueError(
      f'start_step and seed must be 0 or more, got {start_step} and {seed}'
    )
  return Reading(**reading).batches(
    view,
    preprocess,
    batch_size,
    count=None,
    seed=seed,
    start_step=start_step,
    train=True,
  )


def eval_batches(
  view: View, preprocess: ops.Preprocess, *, batch_size: int, **reading
) -> Batches:
  """Returns this host's rows of all examples, each once, in the view's order.

  Every host gets `num_eval_batches` batches. Rows past the last example have
  the mask False. With unreadable='skip-and-count', so have unreadable images,
  and their `unreadable` is True. Over all hosts, rows with the mask True and
  unreadable rows add up to the number of records of the view.

  Arguments and errors are those of `train_batches`.
  """
  return Reading(**reading).batches(
    view, preprocess, batch_size, num_eval_batches(view, batch_size)
  )


def check_first_record(
  view: View, preprocess: ops.Preprocess, **reading
) -> None:
  """Makes one row, so that an error that affects all rows shows at once.

  A run calls this for all its splits before training: otherwise, hours could
  pass until an evaluation fails whose crop is larger than its images.

  Raises:
    ValueError, ReadError: see `train_batches`.
  """
  load = Reading(**reading).load(view, preprocess)
  load.evaluate(0, np.random.default_rng(0))


def num_eval_batches(view: View, batch_size: int) -> int:
  """Returns how many batches of `batch_size` rows hold the whole view."""
  return -(-len(view) // max(1, batch_size))
