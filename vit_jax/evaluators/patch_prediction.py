"""Evaluates masked patch prediction on a whole split (arXiv:2010.11929, B.1.2).

The corruption of an image depends only on its index in the split, so it is the
same in all evaluations of all runs, on any number of devices.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, masked_patch, sharding
from vit_jax.evaluators import evaluator
from vit_jax.evaluators.evaluator import Batches, OnBatch, State

_SEED = 0


class MaskedPatchPrediction:
  """Evaluates masked patch prediction on one split of one data set."""

  def __init__(
    self,
    view: data.View,
    batches: Batches,
    model: nn.Module,
    task: masked_patch.MaskedPatch,
    mesh: jax.sharding.Mesh,
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      view: the images.
      batches: see `evaluator.batches`.
      model: see `masked_patch.adapted`.
      task: see `masked_patch.build`.
      mesh: the devices to use.
    """
    self._view, self._batches, self._mesh = view, batches, mesh
    self._corrupted = task.corruption.count
    self.num_examples = len(view)
    self.data = {'test': view}

    def sums(params, batch, start):
      with sharding.use_mesh(mesh):
        key = masked_patch.corruption_key(_SEED)
        batch = masked_patch.add_image_keys(batch, key, start=start)
        found = masked_patch.measure(model, task, params, batch)
      counted = found.corrupted & batch['mask'][:, None]  # [B, L]
      # Counts how often each class is the target: [B, L, N] -> [classes].
      occurring = jnp.zeros(task.target.num_classes, jnp.int32)
      occurring = occurring.at[found.classes].add(counted[..., None])
      return {
        'accuracy': jnp.sum(jnp.where(counted, found.accuracy, 0.0)),
        'loss': jnp.sum(jnp.where(counted, found.loss, 0.0)),
        'occurring': occurring,
        'count': jnp.sum(batch['mask']),
        'excluded': jnp.sum(batch['unreadable']),
        'unlabelled': 0,
      }

    # The parameters keep their sharding; every process gets the sums.
    self._sums = jax.jit(sums, out_shardings=NamedSharding(mesh, P()))

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields the names and values of the metrics.

    These are `accuracy` and `loss`, means over the corrupted patches;
    `baseline_accuracy`, the accuracy of always predicting their most frequent
    class; `count`, the number of images; and, if there are any, `excluded`, the
    number of unreadable images. count + excluded is the split's size.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch.
    """
    totals = evaluator.total(self._view, self._each_batch(state), on_batch)
    patches = totals['count'] * self._corrupted
    occurring = totals['occurring']
    yield 'accuracy', float(totals['accuracy'] / patches)
    yield 'loss', float(totals['loss'] / patches)
    yield 'baseline_accuracy', float(occurring.max() / occurring.sum())
    yield from evaluator.counts(totals)

  def _each_batch(self, state: State) -> Iterator[dict[str, jax.Array]]:
    start = 0
    for batch in self._batches(self._view):
      batch = sharding.put_batch(batch, self._mesh)
      yield self._sums(state.eval_params, batch, start)
      start += len(batch['mask'])

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}% of the patches (most frequent'
      f' colour: {100 * values["baseline_accuracy"]:.2f}%), loss'
      f' {values["loss"]:.4f} on {values["count"]:.0f} examples'
    )
