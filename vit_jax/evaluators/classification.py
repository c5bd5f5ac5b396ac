"""Accuracy and loss over a whole split, every example exactly once."""

from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, losses, sharding
from vit_jax.data import ops, pipeline
from vit_jax.models.images import normalize
from vit_jax.step import TrainState


class Classification:
  """Evaluates on one split of one data set."""

  def __init__(
    self,
    view: data.View,
    preprocess: ops.Preprocess,
    model: nn.Module,
    loss: losses.Loss,
    mesh: jax.sharding.Mesh,
    *,
    batch_size: int,
    reading: dict,
  ):
    """Nothing is read or compiled yet.

    Args:
      view: the examples.
      preprocess: deterministic ops, see `data/ops.py`.
      model: see `models.build`.
      loss: see `losses.build`.
      mesh: the devices to use.
      batch_size: global; the last batch is padded and masked.
      reading: further arguments of `pipeline.eval_batches`.
    """
    self._view = view
    self._mesh = mesh
    self.num_examples = len(view)
    self._batches = lambda: pipeline.eval_batches(
      view,
      preprocess,
      batch_size=batch_size,
      rows=sharding.local_rows(mesh, batch_size),
      **reading,
    )

    def sums(params, batch):
      with sharding.within(mesh):
        logits, _ = model.apply(
          {'params': params}, normalize(batch['image']), train=False
        )
      mask = batch['mask']
      return {
        'correct': jnp.sum(losses.correct(logits, batch['label']) & mask),
        'loss': jnp.sum(jnp.where(mask, loss(logits, batch['label']), 0.0)),
        'count': jnp.sum(mask),
        'excluded': jnp.sum(batch['unreadable']),
      }

    # The parameters come as they are split; every process gets the sums.
    self._sums = jax.jit(sums, out_shardings=NamedSharding(mesh, P()))

  def run(
    self, state: TrainState, on_batch: Callable[[], None] = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields `accuracy` and `loss` (means over the examples), `count`.

    With unreadable images also `excluded`; count + excluded is the split's
    size.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch.
    """
    totals = {'correct': 0, 'loss': 0.0, 'count': 0, 'excluded': 0}
    pending = None
    for batch in self._batches():
      sums = self._sums(
        state.eval_params, sharding.put_batch(batch, self._mesh)
      )
      # One batch behind: the device works while the next batch is read, and
      # never more than two batches wait on it. Summed in float64.
      if pending is not None:
        totals = _add(totals, pending)
      pending = sums
      on_batch()
    totals = _add(totals, pending)
    seen = totals['count'] + totals['excluded']
    if seen != len(self._view):
      raise RuntimeError(
        f'Evaluation saw {seen} examples of {len(self._view)} in'
        f' {self._view.split!r}.'
      )
    if not totals['count']:
      raise ValueError(
        f'All {seen} images of {self._view.split!r} are unreadable.'
      )
    yield 'accuracy', totals['correct'] / totals['count']
    yield 'loss', totals['loss'] / totals['count']
    yield 'count', totals['count']
    if totals['excluded']:
      logging.warning(
        '%d unreadable image(s) of %r left out of the evaluation.',
        totals['excluded'],
        self._view.split,
      )
      yield 'excluded', totals['excluded']

  def summary(self, values: dict[str, float]) -> str:
    """One line for the log, of what `run` gave."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}%, loss {values["loss"]:.4f} on'
      f' {values["count"]:.0f} examples'
    )


def _add(totals, sums):
  return {k: totals[k] + np.asarray(v).item() for k, v in sums.items()}
