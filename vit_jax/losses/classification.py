"""Classification: the losses, the accuracy, and the objective made of them.

An image has one or several labels. The host sends them as integers, `[B]` or
`[B, M]` padded with -1. Multi-hot float targets are built on the device to save
transfers: for ImageNet-21k they would add half the size of the images.

Axes: `B` batch, `M` maximum number of labels of an image, `K` classes.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import sharding
from vit_jax.losses import distillation, flexi, mixing
from vit_jax.losses.objective import MeanLoss, Objective

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def multi_hot(labels: jax.Array, num_classes: int) -> jax.Array:
  """Turns labels into targets.

  Args:
    labels: int32 [B] or [B, M]; -1 is no label.
    num_classes: K.

  Returns:
    float32 [B, K] of zeros and ones.
  """
  if labels.ndim == 1:
    labels = labels[:, None]
  # `one_hot` of -1 is a row of zeros. Columns are combined one at a time,
  # because [B, M, K] would take gigabytes for ImageNet-21k.
  return functools.reduce(
    jnp.maximum,
    (
      jax.nn.one_hot(column, num_classes, dtype=jnp.float32)  # [B, K]
      for column in labels.T
    ),
  )


def softmax_cross_entropy(
  logits: jax.Array, labels: jax.Array, *, label_smoothing: float
) -> jax.Array:
  """Cross-entropy of the softmax, the paper's fine-tuning loss.

  An image with several labels spreads its target evenly over them.

  Args:
    logits: float32 [B, K].
    labels: int32 [B] or [B, M] padded with -1.
    label_smoothing: mass moved from the target to the uniform distribution.

  Returns:
    float32 [B]; zero for an image without labels.
  """
  targets = multi_hot(labels, logits.shape[-1])
  count = targets.sum(axis=-1, keepdims=True)
  targets = targets / jnp.maximum(count, 1)
  uniform = (count > 0) / logits.shape[-1]
  targets = (1 - label_smoothing) * targets + label_smoothing * uniform
  return optax.softmax_cross_entropy(logits, targets)


def sigmoid_cross_entropy(
  logits: jax.Array, labels: jax.Array, *, label_smoothing: float
) -> jax.Array:
  """Independent binary cross-entropies summed over the classes.

  This is the loss of the released pre-training runs. Label smoothing `s` sets
  the targets to `1 - s` and `s`, as in the public from-scratch ImageNet recipe
  (s = 1e-4); it is not the softmax kind, which divides by the class count.

  Args:
    logits: float32 [B, K].
    labels: int32 [B] or [B, M] padded with -1.
    label_smoothing: s above.

  Returns:
    float32 [B].
  """
  targets = multi_hot(labels, logits.shape[-1])
  targets = jnp.where(targets > 0, 1 - label_smoothing, label_smoothing)
  return optax.sigmoid_binary_cross_entropy(logits, targets).sum(axis=-1)


LOSSES = {
  'softmax': softmax_cross_entropy,
  'sigmoid': sigmoid_cross_entropy,
}


@functools.cache  # The caches of compiled functions compare losses by identity.
def build(
  name: str,
  *,
  label_smoothing: float = 0.0,
  binary: bool = False,
  reduce: str = 'sum',
) -> Loss:
  """Returns `loss(logits [B, K], labels) -> float32 [B]`.

  Args:
    name: 'softmax' or 'sigmoid'.
    label_smoothing: in [0, 1).
    binary: about blends of two images, see `mean_loss`; changes nothing here.
    reduce: 'mean' divides the 'sum' over the classes by K, as PyTorch's
      `BCEWithLogitsLoss` does.
  """
  del binary
  loss = functools.partial(LOSSES[name], label_smoothing=label_smoothing)
  if reduce == 'sum':
    return loss
  return lambda logits, labels: loss(logits, labels) / logits.shape[-1]


def correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns whether the top prediction is a label of the image.

  Args:
    logits: [B, K].
    labels: int32 [B] or [B, M] padded with -1.

  Returns:
    bool [B].
  """
  if labels.ndim == 1:
    labels = labels[:, None]
  return (jnp.argmax(logits, axis=-1)[:, None] == labels).any(axis=-1)


def mean_loss(
  model: nn.Module,
  loss: Loss,
  distil: distillation.Distil | None = None,
  *,
  binary: bool = False,
) -> MeanLoss:
  """Returns the mean loss of a classifier, with the metric `accuracy`.

  Under mixup and CutMix, both are weighted means over the labels of the two
  images. With a distillation token, but no teacher, the mean of both heads
  learns the labels, as in timm.

  Args:
    model: see `models.build`.
    loss: see `build`.
    distil: makes it a part of another loss, see `distillation`; None does not.
    binary: whether the loss, not the accuracy, counts both labels in full: all
      targets above 0 are 1. DeiT III (arXiv:2204.07118) trains so.
      Differs from its code (deit/engine.py), where label smoothing puts all
      classes above 0: here, smoothing comes after.
  """

  def function(params, batch, key):
    images = mixing.images(batch)
    logits, out = model.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}
    )
    if 'distilled' in out and distil is None:
      logits = (logits + out['distilled']) / 2
    # Without partners, these are `f(logits, batch['label']).mean()`.
    mean, accuracy = (
      mixing.over_labels(functools.partial(f, logits), batch, binary=b).mean()
      for f, b in ((loss, binary), (correct, False))
    )
    metrics = {'accuracy': accuracy}
    if distil is not None:
      mean, more = distil(mean, out.get('distilled', logits), batch['teacher'])
      metrics |= more
    return mean, metrics

  return function


def make_objective(
  config: ml_collections.ConfigDict, model: nn.Module, layout: sharding.Layout
) -> Objective:
  """Returns the objective of a classifier.

  Mixup, CutMix and distillation are part of it if they are set.

  Args:
    config: complete.
    model: the config's model.
    layout: how the batch is split.
  """
  make = functools.partial(
    mean_loss,
    loss=build(**config.loss),
    distil=distillation.build(config),
    binary=config.loss.get('binary', False),
  )
  return Objective(
    model,
    flexi.wrap(config, make)(model),
    mixing.make_prepare_batch(config, layout),
    distillation.build_teacher(config, layout),
  )
