"""Says which record and which random numbers each row of a batch has."""

import threading
from collections.abc import Sequence

import numpy as np

from vit_jax.data import permutation


class Places:
  """The rows that a host reads, out of an endless stream of global batches.

  Order and augmentation are functions of a row's place in the whole stream. So
  they do not depend on the number of hosts or on the rows that each reads.
  """

  def __init__(
    self,
    size: int,
    *,
    batch_size: int,
    rows: Sequence[int],
    seed: int = 0,
    start_step: int = 0,
    shuffle: bool = False,
  ):
    """Picks rows.

    Args:
      size: number of records.
      batch_size: rows of a global batch.
      rows: the rows that this host reads, each in [0, batch_size).
      seed: seed of the order and of the random generators, 0 or more.
      start_step: step of the first batch.
      shuffle: whether the records follow each other endlessly, in a new random
        order each epoch; else they come once, in their own order.
    """
    self._size = size
    self._batch_size = batch_size
    self._rows = tuple(rows)
    self._seed = seed
    self._start_step = start_step
    self._shuffle = shuffle
    self._generators = Generators(seed)

  def __call__(self, batch: int, row: int) -> tuple[int, np.random.Generator]:
    """Returns a row's record, and its generator until this thread's next call.

    Args:
      batch: 0-based, counted from `start_step`.
      row: 0-based, among this host's rows.

    Returns:
      The index of the record, `size` or more past the end of what is not
      shuffled; and the random generator of the row.
    """
    return self.record(batch, row), self._generators(self._place(batch, row))

  def _place(self, batch: int, row: int) -> int:
    return (self._start_step + batch) * self._batch_size + self._rows[row]

  def record(self, batch: int, row: int) -> int:
    """Returns the index of a row's record, as a call does."""
    place = self._place(batch, row)
    if not self._shuffle:
      return place
    epoch, index = divmod(place, self._size)
    seed = permutation.epoch_seed(self._seed, epoch)
    return permutation.permute(index, self._size, seed)


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
