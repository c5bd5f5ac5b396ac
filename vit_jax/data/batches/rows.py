"""Says which record and which random numbers each row of a batch has."""

import dataclasses
import functools
import threading
from concurrent import futures

import numpy as np

from vit_jax.data import permutation
from vit_jax.data.batches.load import Load
from vit_jax.data.batches.slots import Batch


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows that a host makes, out of an endless stream of global batches.

  Order and augmentation are functions of a row's place in the whole stream. So
  they do not depend on the number of hosts or on the rows that each reads.

  Attributes:
    load: makes a row of a record.
    size: number of records.
    batch_size: rows of a global batch.
    rows: the rows that this host reads, each in [0, batch_size).
    seed: seed of the order and of the random generators, 0 or more.
    start_step: step of the first batch.
    train: whether the records follow each other endlessly, in a new random
      order each epoch; else they come once, in their own order.
  """

  load: Load
  size: int
  batch_size: int
  rows: tuple[int, ...]
  seed: int = 0
  start_step: int = 0
  train: bool = False

  @functools.cached_property
  def _generators(self) -> 'Generators':
    return Generators(self.seed)

  def _place(self, batch: int, row: int) -> int:
    return (self.start_step + batch) * self.batch_size + self.rows[row]

  def record(self, batch: int, row: int) -> int:
    """Returns the index of a row's record; past the end, `size` or more.

    Args:
      batch: 0-based, counted from `start_step`.
      row: 0-based, among this host's rows.
    """
    place = self._place(batch, row)
    if not self.train:
      return place
    epoch, index = divmod(place, self.size)
    seed = permutation.epoch_seed(self.seed, epoch)
    return permutation.permute(index, self.size, seed)

  def read(self, batch: int, row: int):
    """Reads the record of a row, see `Load.read`."""
    return self.load.read(self.record(batch, row))

  def __call__(
    self, batch: int, row: int, read: futures.Future | None = None
  ) -> Batch:
    """Makes a row; `read` is the future of what `read` returned for it."""
    make = self.load.train if self.train else self.load.evaluate
    rng = self._generators(self._place(batch, row))
    return make(self.record(batch, row), rng, read)


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
