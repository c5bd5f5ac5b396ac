"""The loss of masked patch prediction, over corrupted patches only.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

import contextlib
from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from vit_jax import sharding
from vit_jax.masked_patch import corruption, targets
from vit_jax.masked_patch.task import MaskedPatch
from vit_jax.models.images import normalize

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class Measured:
  """Of each patch of a batch, corrupted or not.

  Attributes:
    corrupted: bool [B, L].
    loss: float32 [B, L].
    classes: int32 [B, L, N], of the colours that were to be predicted.
    predicted: int32 [B, L, N].
  """

  corrupted: jax.Array
  loss: jax.Array
  classes: jax.Array
  predicted: jax.Array

  @property
  def accuracy(self) -> jax.Array:
    """The part of a patch's colours whose class is right, float32 [B, L]."""
    return (self.classes == self.predicted).mean(axis=-1, dtype=jnp.float32)


def add_image_keys(
  batch: Batch,
  key: jax.Array,
  layout: sharding.Layout | None = None,
  *,
  start: int | jax.Array = 0,
) -> Batch:
  """Adds to a batch what the corruption of its images follows from.

  Args:
    batch: the global batch, see `data.pipeline`.
    key: of this step; or of a data set.
    layout: how the batch is split; None for one device, or where
      `sharding.use_mesh` says.
    start: the first image's place in the data set.

  Returns:
    The batch with `corruption_key`, uint32 [B, 2].
  """
  rows = start + jnp.arange(len(batch['image']))
  keys = corruption.image_keys(key, rows)
  # Each device draws for its own images.
  with sharding.use_mesh(layout.mesh) if layout else contextlib.nullcontext():
    keys = sharding.constrain(keys, sharding.BATCH)
  return batch | {'corruption_key': keys}


def each_step(
  seed: int, layout: sharding.Layout | None = None
) -> Callable[[Batch, jax.Array], Batch]:
  """Returns `(batch, step) -> batch`: `add_image_keys` with the step's key."""
  key = corruption.corruption_key(seed)

  def prepare(batch, step):
    return add_image_keys(batch, jax.random.fold_in(key, step), layout)

  return prepare


def measure(
  model: nn.Module,
  task: MaskedPatch,
  params,
  batch: Batch,
  *,
  train: bool = False,
  dropout_key: jax.Array | None = None,
) -> Measured:
  """Corrupts images, predicts, and compares.

  Args:
    model: see `task.adapted`.
    task: see `task.build`.
    params: the model's.
    batch: see `add_image_keys`.
    train: whether dropout is on.
    dropout_key: needed if it is.
  """
  corrupted, source = task.corruption.draw(batch['corruption_key'])
  predictions, _ = model.apply(
    {'params': params},
    normalize(batch['image']),
    source=source,
    train=train,
    rngs={'dropout': dropout_key} if train else None,
  )
  pixels = targets.patches(batch['image'], model.patch_size)
  return Measured(
    corrupted=corrupted,
    loss=task.target.loss(predictions, pixels),
    classes=task.target.classes(pixels),
    predicted=task.target.predicted_classes(predictions),
  )


def mean_loss(model: nn.Module, task: MaskedPatch):
  """Returns `(params, batch, key) -> (loss, metrics)`.

  Means over the corrupted patches of all images, which the paper leaves open.
  The metrics are `loss` and `accuracy`, float32 [].

  Args:
    model: see `task.adapted`.
    task: see `task.build`.
  """

  def function(params, batch, key):
    found = measure(model, task, params, batch, train=True, dropout_key=key)
    # Equally many of each image: see `Corruption`.
    count = len(batch['image']) * task.corruption.count
    loss, accuracy = (
      jnp.sum(jnp.where(found.corrupted, x, 0.0)) / count
      for x in (found.loss, found.accuracy)
    )
    return loss, {'loss': loss, 'accuracy': accuracy}

  return function
