"""Orders the rows of an endless stream of batches, and picks a host's rows."""

from collections.abc import Sequence

import grain

from vit_jax.data import permutation


class Epochs(grain.MapDataset):
  """The indices of all records, endlessly, in a new random order each epoch.

  This replaces Grain's own shuffle, whose four rounds leave neighbouring
  records too close to each other: with 12 million records sorted by class,
  neighbours in its order share a class 20 times as often as by chance.
  """

  def __init__(self, size: int, seed: int):
    """Makes an endless order.

    Args:
      size: number of records.
      seed: seed of the orders, 0 or more.
    """
    super().__init__()
    self._size = size
    self._order_seed = seed

  def __len__(self) -> int:
    return 2**62  # Grain's arithmetic of batches overflows not far above.

  def __getitem__(self, index):
    epoch, place = divmod(index, self._size)
    seed = permutation.epoch_seed(self._order_seed, epoch)
    return permutation.permute(place, self._size, seed)

  def __str__(self) -> str:
    return f'Epochs[{self._size}]'


class HostRows(grain.MapDataset):
  """The given rows of each global batch, in the given order.

  Order and augmentation are functions of a row's place in the whole stream, and
  they are fixed before a host picks its rows. So they do not depend on the
  number of hosts or on the rows that each host reads.
  """

  # Grain wants this of a transformation that does not change elements.
  _MUTATES_ELEMENT_SPEC = False

  def __init__(
    self,
    parent: grain.MapDataset,
    *,
    batch_size: int,
    rows: Sequence[int],
    start_step: int = 0,
  ):
    """Picks rows.

    Args:
      parent: the rows of all global batches, one batch after the other.
      batch_size: rows of a global batch.
      rows: the rows that this host reads, each in [0, batch_size).
      start_step: step of the first batch.
    """
    super().__init__(parent)
    self._batch_size = batch_size
    self._rows = tuple(rows)
    self._start_step = start_step

  def __len__(self) -> int:
    steps = len(self._parent) // self._batch_size - self._start_step
    return steps * len(self._rows)

  def __getitem__(self, index):
    step, row = divmod(index, len(self._rows))
    step += self._start_step
    return self._parent[step * self._batch_size + self._rows[row]]

  def __str__(self) -> str:
    return f'HostRows[{len(self._rows)} of {self._batch_size}]'
