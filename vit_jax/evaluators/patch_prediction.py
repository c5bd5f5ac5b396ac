"""Evaluates masked patch prediction, or a masked autoencoder, on a whole split.

The corruption of an image depends only on its index in the split, so it is the
same in all evaluations of all runs, on any number of devices.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import sharding
from vit_jax.evaluators import evaluator
from vit_jax.evaluators.evaluator import Context, OnBatch
from vit_jax.losses import corruption, masked_patch

_SEED = 0


class MaskedPatchPrediction:
  """Evaluates masked patch prediction on one split of one data set."""

  def __init__(self, given: Context):
    """Checks the section; the images may have any classes.

    Raises:
      ValueError: the run has another loss.
    """
    config, loss = given.config, given.section.kind
    if config.loss.name != loss:
      raise ValueError(
        f'it is for runs with loss.name={loss!r}, but'
        f' loss.name={config.loss.name!r}.'
      )
    task = masked_patch.build(config, given.model)
    view = given.view()
    self._batches = given.batches(
      view,
      num_classes=view.source.info.num_classes,
      max_labels=given.section.max_labels or config.data.max_labels,
    )
    self._corrupted = task.corruption.count
    self.data = {'test': view}

    def sums(params, batch, start):
      with sharding.use_mesh(given.mesh):
        key = corruption.corruption_key(_SEED)
        batch = masked_patch.add_image_keys(batch, key, start=start)
        found = masked_patch.measure(task, params, batch)
      counted = found.corrupted & batch['mask'][:, None]  # [B, L]
      totals = {
        'loss': jnp.sum(jnp.where(counted, found.loss, 0.0)),
        'count': jnp.sum(batch['mask']),
        'excluded': jnp.sum(batch['unreadable']),
        'unlabelled': 0,
      }
      if not task.has_accuracy:
        return totals
      # Counts how often each class is the target: [B, L, N] -> [classes].
      occurring = jnp.zeros(task.target.num_classes, jnp.int32)
      return totals | {
        'accuracy': jnp.sum(jnp.where(counted, found.accuracy, 0.0)),
        'occurring': occurring.at[found.classes].add(counted[..., None]),
      }

    # The parameters keep their sharding; every process gets the sums.
    self._sums = jax.jit(sums, out_shardings=NamedSharding(given.mesh, P()))

  def run(
    self, params: Any, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields the names and values of the metrics.

    These are `accuracy` and `loss`, means over the corrupted patches;
    `baseline_accuracy`, the accuracy of always predicting their most frequent
    class; `count`, the number of images; and, if there are any, `excluded`, the
    number of unreadable images. count + excluded is the split's size. A masked
    autoencoder has no accuracies.

    Args:
      params: the model's parameters.
      on_batch: called after every batch.
    """
    totals = evaluator.total(
      self.data['test'], self._each_batch(params), on_batch
    )
    patches = totals['count'] * self._corrupted
    if (occurring := totals.get('occurring')) is not None:
      yield 'accuracy', float(totals['accuracy'] / patches)
    yield 'loss', float(totals['loss'] / patches)
    if occurring is not None:
      yield 'baseline_accuracy', float(occurring.max() / occurring.sum())
    yield from evaluator.counts(totals)

  def _each_batch(self, params: Any) -> Iterator[dict[str, jax.Array]]:
    start = 0
    for batch in self._batches(self.data['test']):
      yield self._sums(params, batch, start)
      start += len(batch['mask'])
