"""Sums over the batches of an evaluation."""

from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np


def total(
  sums: Iterable[Mapping[str, jax.Array]], on_batch: Callable[[], None]
) -> dict[str, np.ndarray]:
  """Adds up what is computed of each batch, in float64.

  Args:
    sums: of each batch, in turn; at least one.
    on_batch: called after every batch.
  """
  totals, pending = {}, None
  for each in sums:
    # One batch behind: the device works while the next batch is read, and never
    # more than two batches wait on it.
    if pending is not None:
      totals = _add(totals, pending)
    pending = each
    on_batch()
  return _add(totals, pending)


def _add(totals, sums):
  sums = {k: np.asarray(v, np.float64) for k, v in sums.items()}
  return {k: totals[k] + v for k, v in sums.items()} if totals else sums
