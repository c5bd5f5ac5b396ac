"""Adds up sums over the batches of an evaluation."""

from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np


def total(
  sums: Iterable[Mapping[str, jax.Array]], on_batch: Callable[[], None]
) -> dict[str, np.ndarray]:
  """Adds up the sums of all batches in float64.

  Args:
    sums: the sums of each batch; at least one batch.
    on_batch: called after every batch.
  """
  totals, pending = {}, None
  for each in sums:
    # Fetch one batch late, so that the device computes while the next batch is
    # read. At most two batches wait on the device.
    if pending is not None:
      totals = _add(totals, pending)
    pending = each
    on_batch()
  return _add(totals, pending)


def _add(totals, sums):
  sums = {k: np.asarray(v, np.float64) for k, v in sums.items()}
  return {k: totals[k] + v for k, v in sums.items()} if totals else sums
