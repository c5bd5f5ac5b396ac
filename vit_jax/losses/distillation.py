"""Distillation: a student learns from a frozen teacher, and from labels.

The teacher sees exactly the images that the student gets, crops and blends
included, as in patient distillation (arXiv:2106.05237). With
`distill.image_size`, they are resized for it on the device. It runs once at the
start of a step, outside of the gradient, and its logits become a part of the
batch. So it works with everything that splits a batch, or computes its gradient
more than once.

Axes: `A` accumulation steps, `B` batch, `K` classes.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax import models, sharding
from vit_jax.config import platforms
from vit_jax.losses import mixing
from vit_jax.losses.objective import Batch, Metrics

# `(mean loss on labels, student's logits, teacher's) -> (loss, metrics)`.
Distil = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Metrics]]


def build_teacher(
  config: ml_collections.ConfigDict, layout: sharding.Layout
) -> nn.Module | None:
  """Builds the teacher, with the run's dtype and its platform's attention.

  Args:
    config: complete; `distill.model` is a spec, see `models.parse`.
    layout: the mesh.

  Returns:
    The model; None if the config has no teacher.

  Raises:
    ValueError: the config does not tell the teacher's model.
  """
  section = config.distill
  if section.teacher == '':
    return None
  if not section.model:
    raise ValueError(
      f'distill.teacher={section.teacher!r} needs distill.model, its model.'
    )
  parse = functools.partial(
    models.parse, section.model, num_classes=config.num_classes
  )
  platform = layout.mesh.devices.flat[0].platform
  return parse(**platforms.defaults(parse(), platform, config.model.dtype))


def image_size(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """Returns the (height, width) of the images that the teacher sees."""
  return tuple(config.distill.image_size or config.image_size)


def add_logits(
  model: nn.Module,
  params: Any,
  batch: Batch,
  layout: sharding.Layout,
  config: ml_collections.ConfigDict,
) -> Batch:
  """Adds a teacher's logits for the images of a batch.

  Args:
    model: see `build_teacher`.
    params: its parameters, split as `layout.params`.
    batch: after `Objective.prepare_batch`.
    layout: how the batch and the parameters are split.
    config: its `accumulation_steps` is A: as many parts of the batch follow one
      another, so that the teacher needs the memory of a micro-batch.

  Returns:
    The batch with `teacher`, float32 [B, K].
  """
  if layout.gather == 'step':
    params = jax.lax.with_sharding_constraint(
      params, layout.gathered_params(params)
    )

  def split(x):  # [B, ...] -> [A, B/A, ...]
    x = x.reshape(-1, config.accumulation_steps, *x.shape[1:])
    x = jnp.moveaxis(x, 1, 0)
    return sharding.constrain(x, None, sharding.BATCH)

  def predict(rows):
    own = params
    if layout.gather == 'micro_batch':
      # Without the barrier, the compiler moves the gathering out of the loop.
      own, rows = jax.lax.optimization_barrier((params, rows))
    images = mixing.images(rows)
    if config.distill.image_size:
      shape = len(images), *image_size(config), images.shape[-1]
      images = jax.image.resize(images, shape, 'cubic')  # Antialiases.
    return model.apply({'params': own}, images, train=False)[0]

  with sharding.use_mesh(layout.mesh):
    logits = jax.lax.map(predict, jax.tree.map(split, batch))  # [A, B/A, K]
    logits = jnp.moveaxis(logits, 0, 1).reshape(-1, logits.shape[-1])
    return batch | {'teacher': sharding.constrain(logits, sharding.BATCH)}


def build(config: ml_collections.ConfigDict) -> Distil | None:
  """Returns what adds distillation to a loss; None without a teacher.

  With p(z) the softmax of logits z, student s, teacher t and temperature T:

    loss = (1 - weight) * loss on labels + weight * distillation loss
    soft   T^2 * KL(p(t / T) || p(s / T))    Eq. 2, arXiv:2012.12877
    hard   cross-entropy of p(s) and the class argmax t    Eq. 3

  Its metrics are the two losses, and `agreement`, the share of images for which
  student and teacher have the same most likely class.

  Differs from DeiT's losses.py, which also divides the soft loss by the number
  of classes: the sum over classes is what its paper and big_vision's
  `proj/distill` have.

  Args:
    config: complete.
  """
  section = config.distill
  if section.teacher == '':
    return None

  def distil(label_loss, student, teacher):
    best = jnp.argmax(teacher, axis=-1)  # [B]
    if section.kind == 'hard':
      losses = optax.softmax_cross_entropy_with_integer_labels(student, best)
    else:
      temperature = section.temperature
      losses = temperature**2 * optax.losses.kl_divergence_with_log_targets(
        *(jax.nn.log_softmax(x / temperature) for x in (student, teacher))
      )
    loss = total = losses.mean()
    if section.weight < 1:
      total = (1 - section.weight) * label_loss + section.weight * loss
    agreement = (jnp.argmax(student, axis=-1) == best).mean()
    parts = {'label_loss': label_loss, 'distillation_loss': loss}
    return total, parts | {'agreement': agreement}

  return distil
