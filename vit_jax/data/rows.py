"""Rows of an endless stream of batches: in which order, and for which host."""

from collections.abc import Sequence

import grain

from vit_jax.data import permutation


class Epochs(grain.MapDataset):
  """The indices of all records in random order, then in another one, and so on.

  In place of Grain's own shuffle, whose four rounds leave records that lie side
  by side too close to each other: of 12 million that are sorted by class,
  neighbours in its order share a class 20 times as often as by chance.
  """

  def __init__(self, size: int, seed: int):
    """An endless order.

    Args:
      size: number of records.
      seed: of the orders, 0 or more.
    """
    super().__init__()
    self._size = size
    self._order_seed = seed

  def __len__(self) -> int:
    return 2**62  # Below what Grain's arithmetic of batches overflows at.

  def __getitem__(self, index):
    epoch, place = divmod(index, self._size)
    seed = permutation.epoch_seed(self._order_seed, epoch)
    return permutation.permute(place, self._size, seed)

  def __str__(self) -> str:
    return f'Epochs[{self._size}]'


class HostRows(grain.MapDataset):
  """Of every global batch, in turn, the given rows in the given order.

  The rows are picked only after order and augmentation are fixed, which are
  functions of a row's place in the whole stream: so they are the same on any
  number of hosts, whichever rows each of them reads.
  """

  # What Grain asks of a transformation that leaves elements as they are.
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
      rows: those that this host reads, each in [0, batch_size).
      start_step: the first batch.
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
