"""Makes rows of batches: which record, which random numbers, which pixels.

The global batch of step k, including order and augmentation, is a pure function
of (seed, k). It depends neither on the number of hosts, threads and worker
processes nor on the step from which training resumed, so there is no iterator
state to save. Three things ensure this: the shuffle is a function of (seed,
epoch, position) (`permutation.py`); a row's random generator is a function of
(seed, row of the endless stream of epochs); and hosts pick their rows of a
global batch only after both are fixed.
"""

import dataclasses
import itertools
import threading
from collections.abc import Sequence

import numpy as np
from absl import logging

from vit_jax.data import permutation
from vit_jax.data.batches.cache import Cache
from vit_jax.data.batches.slots import Batch
from vit_jax.data.ops.decoding import CorruptImageError
from vit_jax.data.ops.preprocess import Preprocess
from vit_jax.data.source import Record
from vit_jax.runtime import errors

Records = Sequence[Record]  # `data.View`, or anything with a length and items.

_MAX_SUBSTITUTES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
  """How batches are made; no value changes a batch that has no bad record.

  Attributes:
    num_classes: labels must lie in [0, num_classes).
    max_labels: the most labels of a record that are kept; if 1, a record with
      more labels is an error.
    unreadable: what to do if an image cannot be decoded. 'error' stops and
      names it. With 'skip-and-count', in training, a record that the row's own
      generator draws replaces it, and `unreadable` is True in that row; in
      evaluation, the row is masked.
    rows: the rows of a global batch that this host reads; None reads all. See
      `sharding.local_rows`.
    threads: number of threads that make a batch together; 0 makes it in the
      caller's thread. The default is the number of cores, at most 16. A worker
      has as many, by default one.
    workers: number of processes that make batches instead of this process. By
      default they start when the loop waits for batches and there is more than
      one core: one per core, at most 64.
    read_ahead: number of records that are read at the same time, which takes as
      many threads; the default is 500 if the source is remote, else 0.
    cache: where to keep decoded images; None decodes them each time. It is
      that of one process, so there are no workers.
    tell: whether images that cannot be read are logged.
  """

  num_classes: int
  max_labels: int = 1
  unreadable: str = 'error'
  rows: Sequence[int] | None = None
  threads: int | None = None
  workers: int | None = None
  read_ahead: int | None = None
  cache: Cache | None = None
  tell: bool = True

  def __post_init__(self):
    if self.unreadable not in ('error', 'skip-and-count'):
      raise ValueError(
        f'unreadable={self.unreadable!r} must be error or skip-and-count.'
      )
    if self.cache and self.workers:
      raise ValueError(
        f'workers={self.workers} cannot share a cache, which is in the memory'
        ' of one process: leave data.workers unset, or data.cache'
      )


class Rows:
  """The rows that a host makes, out of a stream of global batches.

  Order and augmentation are functions of a row's place in the whole stream. So
  they do not depend on the number of hosts or on the rows that each reads.
  Picklable if the view is.

  Attributes:
    rows: the rows of a global batch that this host makes.
    reading: how.
    view: the records.
  """

  def __init__(
    self,
    view: Records,
    preprocess: Preprocess,
    reading: Reading,
    batch_size: int,
    *,
    seed: int = 0,
    start_step: int = 0,
    train: bool = False,
    repeats: int = 1,
  ):
    """Checks the arguments, and reads one record.

    Args:
      view: the records.
      preprocess: turns a record's image into that of a row.
      reading: how.
      batch_size: rows of a global batch.
      seed: seed of the order and of the random generators, 0 or more.
      start_step: step of the first batch.
      train: whether the records follow each other endlessly, in a new random
        order each epoch; else they come once, in their own order.
      repeats: how often each record comes in turn, see `spread`.
    """
    rows = range(batch_size) if reading.rows is None else reading.rows
    self.view, self.reading, self.rows = view, reading, tuple(rows)
    self._preprocess, self._batch_size = preprocess, batch_size
    self._seed, self._start_step, self._train = seed, start_step, train
    self._repeats, self._spread = repeats, spread(batch_size, repeats)
    self._generators = Generators(seed)
    self._told: set[str] = set()
    self._table = None
    if reading.cache:
      self._table = reading.cache.table(view, preprocess)
    # Read from one record, since masked rows need the shape of a label too.
    label = self._load(0)[0].label
    self._multi_label = reading.max_labels > 1 or np.ndim(label) > 0

  def __call__(self, batch: int, row: int) -> Batch:
    """Makes a row.

    Args:
      batch: 0-based, counted from `start_step`.
      row: 0-based, among this host's rows.
    """
    # The place of the row in the stream of all hosts' rows.
    start = (self._start_step + batch) * self._batch_size
    place = start + self.rows[row]
    turn = start + self._spread[self.rows[row]]
    index = self._index(turn // self._repeats)
    if index >= len(self.view):
      return self.masked_row()
    rng = self._generators(place)
    for attempt in range(_MAX_SUBSTITUTES + 1):
      record, done = self._load(index)
      labels = self._labels(record)
      image = self._image(index, record, done, rng)
      if image is not None:
        return self._joined(image, labels) | {'unreadable': attempt > 0}
      if not self._train:
        return self.masked_row() | {'unreadable': True}
      index = int(rng.integers(len(self.view)))
    raise ValueError(
      f'{_MAX_SUBSTITUTES + 1} images in a row{self._in_data()} are unreadable;'
      f' the last is {record.name}; check the data set'
    )

  def masked_row(self) -> Batch:
    """Returns a row that does not count: zeros, without a label."""
    shape = (*self._preprocess.image_size, self._preprocess.channels)
    image = np.zeros(shape, np.uint8)
    return self._joined(image, [], mask=False)

  def _index(self, place: int) -> int:
    """Returns which record of the view a place has."""
    if not self._train:
      return place
    epoch, index = divmod(place, len(self.view))
    seed = permutation.epoch_seed(self._seed, epoch)
    return permutation.permute(index, len(self.view), seed)

  def _load(self, index: int) -> tuple[Record, int | None]:
    """Takes a record from the cache, or else reads it.

    Returns:
      The record; and the number of first operations that have made its image,
      None if it is not from the cache.
    """
    try:
      kept = self._table and self._table.get(index)
      return kept or (self.view[index], None)
    except Exception as error:
      raise errors.ReadError(
        f'reading record {index}{self._in_data()} failed:'
        f' {type(error).__name__}: {error}'
      ) from error

  def _in_data(self) -> str:
    """Returns the split and the data set for messages, if they are known."""
    source = getattr(self.view, 'source', None)
    return f' in {self.view.split!r} of {source.info.spec!r}' if source else ''

  def _image(
    self,
    index: int,
    record: Record,
    done: int | None,
    rng: np.random.Generator,
  ) -> np.ndarray | None:
    """Returns a row's image; None if it is unreadable and to be skipped."""
    image = record.image
    try:
      if self._table is not None and done is None:
        image, done = self._preprocess.without_chance(image)
        # A copy, as it may be a part of a larger image.
        kept = dataclasses.replace(record, image=image.copy())
        self.reading.cache.put(self._table, index, kept, done)
      return self._preprocess(image, rng, done or 0)
    except CorruptImageError as error:
      if self.reading.unreadable == 'error':
        raise ValueError(
          f'{record.name}: {error}; repair or remove it, or set '
          '--config.data.unreadable=skip-and-count'
        ) from error
      if self.reading.tell and record.name not in self._told:
        self._told.add(record.name)
        logging.warning('Skipped %s: %s', record.name, error)
      return None
    except Exception as error:
      raise ValueError(f'{record.name}: {error}') from error

  def _labels(self, record: Record) -> Sequence[int]:
    """Returns the labels of a record, which it checks."""
    label, most = record.label, self.reading.max_labels
    # Most records' way, as `np.ndim` takes long.
    single = isinstance(label, int) or np.ndim(label) == 0
    labels = [label] if single else list(label)
    if len(labels) > most == 1:
      raise ValueError(
        f'{record.name} has {len(labels)} labels{self._in_data()}, more than '
        f'max_labels={most}; set --config.data.max_labels to the most labels to'
        ' keep per image'
      )
    for label in labels:
      if not 0 <= label < self.reading.num_classes:
        raise ValueError(
          f'{record.name} has label {label}, outside of [0, num_classes='
          f'{self.reading.num_classes}){self._in_data()}; repair the data set'
        )
    return labels

  def _joined(
    self, image: np.ndarray, labels: Sequence[int], mask: bool = True
  ) -> Batch:
    most = self.reading.max_labels
    if self._multi_label:
      label = np.full(most, -1, np.int32)
      label[: len(labels)] = labels[:most]
    else:
      label = np.int32(labels[0] if labels else -1)
    row = {'image': image, 'label': label, 'mask': mask, 'unreadable': False}
    return row | {'truncated': len(labels) > most} if most > 1 else row


def spread(batch_size: int, repeats: int) -> list[int]:
  """Returns where in a batch's turns its rows are, if records are repeated.

  Turns repeat each record of the order `repeats` times: turn t of the stream
  has record t // repeats. Those of a batch fill its rows in `repeats` rounds,
  with one copy of each record. So copies are a round apart: on different
  devices, if there are at least `repeats`, and never neighbours, since images
  are blended with their neighbours. From 3 * `repeats` rows on, this holds for
  the last row and the first, too.

  This is repeated augmentation (arXiv:1902.05509), as in DeiT's `RASampler`
  (deit/samplers.py): an epoch keeps its number of rows. If `repeats` does not
  divide the batch, a record's copies may lie in two batches, as there.
  Differs from DeiT: the order goes on where an epoch ends, so that `repeats`
  epochs have each record `repeats` times. There, each epoch begins a new order,
  and leaves out its end.

  Args:
    batch_size: rows of a global batch.
    repeats: 1 or more.

  Returns:
    The turn of each row, counted from the batch's first turn.
  """
  rounds = (range(i, batch_size, repeats) for i in range(repeats))
  return list(itertools.chain(*rounds))


class Generators:
  """A stream of independent random numbers for each index.

  The numbers are Philox's blocks that begin at the index, and are the same as
  Grain's `random_map` draws, so that runs that began with Grain go on.
  """

  def __init__(self, seed: int):
    """Derives the key from the seed, which is 0 or more."""
    self._seed = seed
    self._key = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
    self._threads = threading.local()

  def __reduce__(self):
    return Generators, (self._seed,)

  def __call__(self, index: int) -> np.random.Generator:
    """Returns this thread's generator, set to the beginning of a stream."""
    try:
      generator, state = self._threads.kept
    except AttributeError:
      # To make a generator takes much longer than to set its state.
      generator = np.random.Generator(np.random.Philox(self._key))
      state = generator.bit_generator.state
      self._threads.kept = generator, state
    state['state']['counter'] = np.array([0, 0, 0, index], np.uint64)
    generator.bit_generator.state = state
    return generator
