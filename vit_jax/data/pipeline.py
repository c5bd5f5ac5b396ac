"""Makes batches of records: each host's rows of the global batches.

The global batch of step k, including order and augmentation, is a pure function
of (seed, k). It depends neither on the number of hosts, threads and worker
processes nor on the step from which training resumed, so there is no iterator
state to save. Three things ensure this: the shuffle is a function of (seed,
epoch, position) (`permutation.py`); a row's random generator is a function of
(seed, row of the endless stream of epochs); and hosts pick their rows of a
global batch only after both are fixed.

Grain's threads work on pieces of a batch, so that all threads share one batch.
A batch is ready after the time for its rows divided by the number of threads.

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

import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence

import grain
import numpy as np
from absl import flags, logging

from vit_jax.data import ops
from vit_jax.data.rows import Epochs, HostRows
from vit_jax.data.source import Record
from vit_jax.runtime import errors

Batch = dict[str, np.ndarray]
View = Sequence[Record]  # `source.View`, or anything with a length and items.

# The policies for an image that cannot be decoded. 'error' stops and names it.
# 'skip-and-count' marks it and, in training, replaces it by another image, or,
# in evaluation, leaves it out.
UNREADABLE_POLICIES = ('error', 'skip-and-count')

_MAX_SUBSTITUTES = 10

# Pieces of a batch per thread, so that none waits long for the slowest; and the
# most rows of a piece. Each piece costs some microseconds.
_PIECES = 4
_PIECE_ROWS = 16


def train_batches(
  view: View,
  preprocess: ops.Preprocess,
  *,
  batch_size: int,
  seed: int,
  num_classes: int,
  start_step: int = 0,
  max_labels: int = 1,
  unreadable: str = 'error',
  rows: Sequence[int] | None = None,
  threads: int | None = None,
  workers: int = 0,
  prefetch: int | None = None,
) -> Iterator[Batch]:
  """Returns this host's rows of global batches start_step, start_step + 1, ...

  Epochs follow each other without a gap, each in a different order: a batch may
  hold the end of one epoch and the beginning of the next. No row is masked.

  Args:
    view: the records; picklable if there are workers.
    preprocess: turns a record's image into that of a row.
    batch_size: rows of the global batch.
    seed: seed of the order and the augmentation, 0 or more.
    num_classes: labels must lie in [0, num_classes).
    start_step: step of the first batch, 0 or more.
    max_labels: the most labels of a record that are kept; if 1, a record with
      more labels is an error.
    unreadable: one of UNREADABLE_POLICIES. With 'skip-and-count', a record that
      the row's own generator draws replaces an unreadable one, and `unreadable`
      is True in that row.
    rows: the rows of a global batch that this host reads; None reads all. See
      `sharding.local_rows`.
    threads: number of threads that make a batch together; 0 makes it in the
      caller's thread. The default is the number of cores divided by that of
      workers, at most 16.
    workers: number of processes whose threads make batches instead of this
      process's. A few help where Python, rather than decoding, limits the
      threads. Their batches pass through /dev/shm, which must hold `prefetch`
      batches and one more.
    prefetch: number of batches that are in progress or waiting; by default two,
      or as many as keep all threads busy. This bounds the memory. Workers hold
      the same number again in their own memory.

  Raises:
    ValueError: at once if the arguments contradict each other; from the
      iterator if an image or a label is wrong, with the name of the record.
    ReadError: from the iterator if the source failed to read a record. The
      policy `unreadable` does not apply to it.
  """
  rows = _check_rows(batch_size, rows)
  if start_step < 0 or seed < 0:
    raise ValueError(
      f'start_step and seed must be 0 or more, got {start_step} and {seed}'
    )
  load = _Load(view, preprocess, num_classes, max_labels, unreadable)
  dataset = Epochs(len(view), seed).seed(seed).random_map(load.train)
  dataset = HostRows(
    dataset, batch_size=batch_size, rows=rows, start_step=start_step
  )
  return _iterate(dataset, len(rows), threads, workers, prefetch)


def eval_batches(
  view: View,
  preprocess: ops.Preprocess,
  *,
  batch_size: int,
  num_classes: int,
  max_labels: int = 1,
  unreadable: str = 'error',
  rows: Sequence[int] | None = None,
  threads: int | None = None,
  workers: int = 0,
  prefetch: int | None = None,
  tell: bool = True,
) -> Iterator[Batch]:
  """Returns this host's rows of all examples, each once, in the view's order.

  Every host gets `num_eval_batches` batches. Rows past the last example have
  the mask False. With unreadable='skip-and-count', so have unreadable images,
  and their `unreadable` is True. Over all hosts, rows with the mask True and
  unreadable rows add up to the number of records of the view.

  Arguments and errors are those of `train_batches`. `tell` is whether images
  that cannot be read are logged.
  """
  rows = _check_rows(batch_size, rows)
  load = _Load(view, preprocess, num_classes, max_labels, unreadable, tell)
  total = batch_size * num_eval_batches(view, batch_size)
  dataset = (
    grain.MapDataset.range(total)
    .seed(0)  # For random operations, which evaluations usually avoid.
    .random_map(load.evaluate)
  )
  dataset = HostRows(dataset, batch_size=batch_size, rows=rows)
  return _iterate(dataset, len(rows), threads, workers, prefetch)


def check_first_record(
  view: View,
  preprocess: ops.Preprocess,
  *,
  num_classes: int,
  max_labels: int = 1,
  unreadable: str = 'error',
) -> None:
  """Makes one row, so that an error that affects all rows shows at once.

  A run calls this for all its splits before training: otherwise, hours could
  pass until an evaluation fails whose crop is larger than its images.

  Raises:
    ValueError, ReadError: see `train_batches`.
  """
  load = _Load(view, preprocess, num_classes, max_labels, unreadable)
  load.evaluate(0, np.random.default_rng(0))


def num_eval_batches(view: View, batch_size: int) -> int:
  """Returns how many batches of `batch_size` rows hold the whole view."""
  return -(-len(view) // batch_size)


def _check_rows(batch_size: int, rows: Sequence[int] | None) -> Sequence[int]:
  if batch_size < 1:
    raise ValueError(f'batch_size={batch_size} must be positive')
  rows = range(batch_size) if rows is None else rows
  if not rows or min(rows) < 0 or max(rows) >= batch_size:
    raise ValueError(
      f'rows={rows} must be some of the batch_size={batch_size} rows of a '
      'global batch, numbered from 0'
    )
  return rows


class _Load:
  """Makes rows of records; picklable if the view is."""

  def __init__(
    self,
    view: View,
    preprocess: ops.Preprocess,
    num_classes: int,
    max_labels: int,
    unreadable: str,
    tell: bool = True,
  ):
    if unreadable not in UNREADABLE_POLICIES:
      raise ValueError(
        f'unknown policy unreadable={unreadable!r}; choose from '
        f'{list(UNREADABLE_POLICIES)}'
      )
    self._view = view
    self._preprocess = preprocess
    self._num_classes = num_classes
    self._max_labels = max_labels
    self._skip = unreadable == 'skip-and-count'
    self._tell = tell
    self._named: set[str] = set()
    # Read from one record, since masked rows need the shape of a label too.
    self._multi_label = max_labels > 1 or np.ndim(self._read(0).label) > 0

  def __setstate__(self, state: dict):
    self.__dict__ = state
    _end_with_parent()

  def train(self, index: int, rng: np.random.Generator) -> Batch:
    """Returns the row of a record, or of a substitute for it."""
    record = self._read(index)
    for attempt in range(_MAX_SUBSTITUTES + 1):
      try:
        return self._row(record, rng, unreadable=attempt > 0)
      except ops.CorruptImageError as error:
        if not self._skip:
          raise self._unreadable_error(record, error) from error
        self._name_once(record, error)
        last = error
        failed = record
        record = self._read(int(rng.integers(len(self._view))))
    raise ValueError(
      f'{_MAX_SUBSTITUTES + 1} images in a row{self._in_data()} are unreadable;'
      f' the last is {failed.name}: {last}; check the data set'
    )

  def evaluate(self, index: int, rng: np.random.Generator) -> Batch:
    """Returns the row of a record; masked past the end or if unreadable."""
    if index >= len(self._view):
      return self._masked_row(unreadable=False)
    record = self._read(index)
    try:
      return self._row(record, rng, unreadable=False)
    except ops.CorruptImageError as error:
      if not self._skip:
        raise self._unreadable_error(record, error) from error
      self._name_once(record, error)
      return self._masked_row(unreadable=True)

  def _read(self, index: int) -> Record:
    try:
      return self._view[index]
    except Exception as error:
      # A worker process could not pickle some types of exceptions, and its
      # parent would wait for ever.
      raise errors.ReadError(
        f'reading record {index}{self._in_data()} failed:'
        f' {type(error).__name__}: {error}'
      ) from error

  def _in_data(self) -> str:
    """Returns the split and the data set for messages, if they are known."""
    source = getattr(self._view, 'source', None)
    return f' in {self._view.split!r} of {source.info.spec!r}' if source else ''

  def _row(
    self, record: Record, rng: np.random.Generator, unreadable: bool
  ) -> Batch:
    label, truncated = self._label(record)
    try:
      image = self._preprocess(record.image, rng)
    except ops.CorruptImageError:
      raise
    except Exception as error:
      raise ValueError(f'{record.name}: {error}') from error
    row = {
      'image': image,
      'label': label,
      'mask': np.True_,
      'unreadable': np.bool_(unreadable),
    }
    return row | self._truncated(truncated)

  def _masked_row(self, unreadable: bool) -> Batch:
    shape = (*self._preprocess.image_size, self._preprocess.channels)
    return {
      'image': np.zeros(shape, np.uint8),
      'label': self._pad_labels([]),
      'mask': np.False_,
      'unreadable': np.bool_(unreadable),
    } | self._truncated(False)

  def _truncated(self, truncated: bool) -> Batch:
    several = self._max_labels > 1
    return {'truncated': np.bool_(truncated)} if several else {}

  def _label(self, record: Record) -> tuple[np.ndarray | np.int32, bool]:
    """Returns the labels to keep, and whether the record has more."""
    single = np.ndim(record.label) == 0
    labels = [record.label] if single else list(record.label)
    if len(labels) > self._max_labels == 1:
      raise ValueError(
        f'{record.name} has {len(labels)} labels{self._in_data()}, more than '
        f'max_labels={self._max_labels}; set --config.data.max_labels to the '
        'most labels to keep per image'
      )
    for label in labels:
      if not 0 <= label < self._num_classes:
        raise ValueError(
          f'{record.name} has label {label}, outside of '
          f'[0, num_classes={self._num_classes}){self._in_data()}; repair the '
          'data set'
        )
    kept = labels[: self._max_labels]
    return self._pad_labels(kept), len(kept) < len(labels)

  def _pad_labels(self, labels: list[int]) -> np.ndarray | np.int32:
    if not self._multi_label:
      return np.int32(labels[0] if labels else -1)
    padded = np.full(self._max_labels, -1, np.int32)
    padded[: len(labels)] = labels
    return padded

  def _name_once(self, record: Record, error: Exception) -> None:
    if self._tell and record.name not in self._named:
      self._named.add(record.name)
      logging.warning('Skipped %s: %s', record.name, error)

  def _unreadable_error(self, record: Record, error: Exception) -> ValueError:
    return ValueError(
      f'{record.name}: {error}; repair or remove it, or set '
      '--config.data.unreadable=skip-and-count'
    )


@functools.cache  # Once per process.
def _end_with_parent() -> None:
  """Ends this process, if it is a worker, as soon as its parent is gone.

  A killed parent cannot notify its workers, which would wait for ever for it to
  take their batches.
  """
  parent = multiprocessing.parent_process()
  # Data workers are daemons; a user's child process that trains is not.
  if parent is None or not multiprocessing.current_process().daemon:
    return
  # A terminal sends Ctrl-C to all processes, but the parent still needs its
  # workers for what it does before it ends.
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

  def wait():
    parent.join()
    os._exit(1)

  threading.Thread(target=wait, name='parent', daemon=True).start()


def _iterate(
  rows: grain.MapDataset,
  batch_rows: int,
  threads: int | None,
  workers: int,
  prefetch: int | None,
) -> Iterator[Batch]:
  """Makes batches of `batch_rows` rows ahead of time, in order."""
  if threads is None:
    threads = min(16, max(1, (os.cpu_count() or 1) // max(1, workers)))
  if prefetch is None:
    prefetch = max(2, -(-2 * threads // batch_rows))
  if workers:
    # Few pieces, since each piece of a worker costs the parent open files.
    piece = _divisor(batch_rows, batch_rows // max(1, threads * workers))
  else:
    piece = _piece(batch_rows, threads)
  pieces = batch_rows // piece
  held = max(threads, -(-prefetch * pieces // max(1, workers)))
  dataset = rows.batch(piece).to_iter_dataset(
    grain.ReadOptions(num_threads=threads, prefetch_buffer_size=held)
  )
  if workers:
    # Grain spawns its workers, so they do not inherit the accelerator, and no
    # code that they run initialises one. Grain also reads absl flags, which
    # raises an error in a program that has not parsed them.
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    dataset = dataset.mp_prefetch(
      # Halved, since Grain buffers the same number again in this process.
      grain.MultiprocessingOptions(
        num_workers=workers, per_worker_buffer_size=max(1, held // 2)
      )
    )
  # This process joins the pieces, since workers take them in turn. This also
  # copies them out of the workers' shared memory, which is scarce, and which
  # leaks if arrays in it are alive at exit.
  iterator = iter(dataset.batch(pieces, batch_fn=_join))
  generator = _take(iterator)
  # Grain cannot end its threads and workers cleanly while the interpreter tears
  # modules down, and a finalizer runs before that.
  weakref.finalize(generator, iterator.close)
  return generator


def _piece(rows: int, threads: int) -> int:
  """Returns how many rows a thread makes at a time: a divisor of `rows`."""
  return _divisor(rows, min(_PIECE_ROWS, rows // (_PIECES * max(1, threads))))


def _divisor(number: int, most: int) -> int:
  """Returns the largest divisor of `number` that is at most `most`, or 1."""
  return max(n for n in range(1, max(1, most) + 1) if number % n == 0)


def _join(pieces: Sequence[Batch]) -> Batch:
  return {
    key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]
  }


def _take(iterator: grain.DatasetIterator) -> Iterator[Batch]:
  try:
    yield from iterator
  finally:
    iterator.close()
