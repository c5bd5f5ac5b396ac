"""Computes the loss of masked patch prediction, over corrupted patches only.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.masked_patch import targets
from vit_jax.masked_patch import task as task_lib
from vit_jax.masked_patch.task import MaskedPatch
from vit_jax.models.shared import normalize

Batch = dict[str, jax.Array]


class Measured(NamedTuple):
  """Measurements of each patch of a batch, corrupted or not.

  Attributes:
    corrupted: bool [B, L].
    loss: float32 [B, L].
    classes: int32 [B, L, N], the classes of the true colours.
    predicted: int32 [B, L, N], the classes of the predicted colours.
  """

  corrupted: jax.Array
  loss: jax.Array
  classes: jax.Array
  predicted: jax.Array

  @property
  def accuracy(self) -> jax.Array:
    """The share of a patch's colours whose class is right, float32 [B, L]."""
    return (self.classes == self.predicted).mean(axis=-1, dtype=jnp.float32)


def add_image_keys(
  batch: Batch, key: jax.Array, start: int | jax.Array = 0
) -> Batch:
  """Adds to a batch the keys that determine the corruption of its images.

  Args:
    batch: the global batch, see `data.pipeline`.
    key: the key of this step or of a data set.
    start: index of the first image in the data set.

  Returns:
    The batch with `corruption_key`, uint32 [B, 2].
  """
  keys = task_lib.image_keys(key, start + jnp.arange(len(batch['image'])))
  # Shard, so that each device draws only for its own images.
  keys = sharding.constrain(keys, sharding.BATCH)
  return batch | {'corruption_key': keys}


def each_step(
  seed: int, layout: sharding.Layout
) -> Callable[[Batch, jax.Array], Batch]:
  """Returns `(batch, step) -> batch`: `add_image_keys` with the step's key."""
  key = task_lib.corruption_key(seed)

  def prepare(batch, step):
    with sharding.use_mesh(layout.mesh):
      return add_image_keys(batch, jax.random.fold_in(key, step))

  return prepare


def measure(
  task: MaskedPatch,
  params,
  batch: Batch,
  *,
  dropout_key: jax.Array | None = None,
) -> Measured:
  """Corrupts images, predicts their patches, and compares them.

  Args:
    task: see `task.build`.
    params: parameters of the task's model.
    batch: see `add_image_keys`.
    dropout_key: key of the dropout; None for none.
  """
  corrupted, source = task.corruption.draw(batch['corruption_key'])
  predictions, _ = task.model.apply(
    {'params': params},
    normalize(batch['image']),
    source=source,
    train=dropout_key is not None,
    rngs=None if dropout_key is None else {'dropout': dropout_key},
  )
  pixels = targets.patches(batch['image'], task.target.patch_size)
  return Measured(
    corrupted=corrupted,
    loss=task.target.loss(predictions, pixels),
    classes=task.target.classes(pixels),
    predicted=task.target.predicted_classes(predictions),
  )


def mean_loss(task: MaskedPatch):
  """Returns `(params, batch, key) -> (loss, metrics)`.

  The paper leaves the reduction open; these are means over the corrupted
  patches of all images. The metrics are `loss` and `accuracy`, float32 [].

  Args:
    task: see `task.build`.
  """

  def function(params, batch, key):
    found = measure(task, params, batch, dropout_key=key)
    # Each image has the same number of corrupted patches: see `Corruption`.
    count = len(batch['image']) * task.corruption.count
    loss, accuracy = (
      jnp.sum(jnp.where(found.corrupted, x, 0.0)) / count
      for x in (found.loss, found.accuracy)
    )
    return loss, {'loss': loss, 'accuracy': accuracy}

  return function
