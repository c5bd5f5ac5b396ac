"""Evaluates masked patch prediction on a whole split (arXiv:2010.11929, B.1.2).

The corruption of an image depends only on its index in the split, so it is the
same in all evaluations of all runs, on any number of devices.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

from collections.abc import Callable, Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, masked_patch, sharding
from vit_jax.data import ops, pipeline
from vit_jax.evaluators import summing
from vit_jax.evaluators.evaluator import State

_SEED = 0


class MaskedPatchPrediction:
  """Evaluates masked patch prediction on one split of one data set."""

  def __init__(
    self,
    view: data.View,
    preprocess: ops.Preprocess,
    model: nn.Module,
    task: masked_patch.MaskedPatch,
    mesh: jax.sharding.Mesh,
    *,
    batch_size: int,
    reading: dict,
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      view: the images.
      preprocess: deterministic ops, see `data/ops`.
      model: see `masked_patch.adapted`.
      task: see `masked_patch.build`.
      mesh: the devices to use.
      batch_size: global batch size; the last batch is padded and masked.
      reading: further arguments of `pipeline.eval_batches`.
    """
    self._view = view
    self._mesh = mesh
    self._batch_size = batch_size
    self._corrupted = task.corruption.count
    self.num_examples = len(view)
    self.data = {'test': view}
    self._batches = lambda: pipeline.eval_batches(
      view,
      preprocess,
      batch_size=batch_size,
      rows=sharding.local_rows(mesh, batch_size),
      **reading,
    )

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
      }

    # The parameters keep their sharding; every process gets the sums.
    self._sums = jax.jit(sums, out_shardings=NamedSharding(mesh, P()))

  def run(
    self, state: State, on_batch: Callable[[], None] = lambda: None
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
    totals = summing.total(
      (
        self._sums(
          state.eval_params,
          sharding.put_batch(batch, self._mesh),
          index * self._batch_size,
        )
        for index, batch in enumerate(self._batches())
      ),
      on_batch,
    )
    count, excluded = int(totals['count']), int(totals['excluded'])
    if count + excluded != len(self._view):
      raise RuntimeError(
        f'Evaluation saw {count + excluded} examples of {len(self._view)} in'
        f' {self._view.split!r}.'
      )
    if not count:
      raise ValueError(
        f'All {excluded} images of {self._view.split!r} are unreadable. Check'
        ' the data set.'
      )
    patches = count * self._corrupted
    occurring = totals['occurring']
    yield 'accuracy', float(totals['accuracy'] / patches)
    yield 'loss', float(totals['loss'] / patches)
    yield 'baseline_accuracy', float(occurring.max() / occurring.sum())
    yield 'count', count
    if excluded:
      logging.warning(
        'The evaluation leaves out %d unreadable image(s) of %r.',
        excluded,
        self._view.split,
      )
      yield 'excluded', excluded

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}% of the patches (most frequent'
      f' colour: {100 * values["baseline_accuracy"]:.2f}%), loss'
      f' {values["loss"]:.4f} on {values["count"]:.0f} examples'
    )
