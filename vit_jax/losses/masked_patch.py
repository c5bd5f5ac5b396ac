"""Masked patch prediction, and masked autoencoders.

Masked patch prediction is the paper's self-supervision (§4.6, B.1.2): some
patch embeddings are corrupted, and the model predicts the original colours of
those patches. In a masked autoencoder (arXiv:2111.06377), the corrupted patches
are hidden: the encoder reads the others, and a decoder predicts all pixels. The
loss is over corrupted patches only.

Axes: `B` batch, `L` patches of an image, `N` colours predicted of a patch.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import sharding
from vit_jax.config.sections import MAE
from vit_jax.losses import corruption, targets
from vit_jax.losses.objective import Batch, MeanLoss, Objective, PrepareBatch
from vit_jax.models import mae, vit
from vit_jax.models.shared import normalize


@dataclasses.dataclass(frozen=True)
class MaskedPatch:
  """The task that replaces a classification loss.

  Attributes:
    model: the model, with a prediction per patch instead of a classifier.
    corruption: how patch embeddings are corrupted.
    target: the prediction target of each corrupted patch.
  """

  model: nn.Module
  corruption: corruption.Corruption
  target: targets.Target

  @property
  def has_accuracy(self) -> bool:
    """Whether colours have classes: not in a masked autoencoder."""
    return self.model.decoder is None


def build(config: ml_collections.ConfigDict, model: nn.Module) -> MaskedPatch:
  """Builds the task of a complete config.

  Args:
    config: its section `loss` has the keys of `config.masked_patch` or of
      `config.mae`.
    model: see `models.build`; a classifier, or the model of the task itself.

  Raises:
    ValueError: the section does not suit the images; the model cannot learn the
      task; or the config uses mixup or CutMix, which blend labels.
  """
  section = config.loss
  _check_model(section.name, model)
  for key in ('mixup_alpha', 'cutmix_alpha'):
    if alpha := config[key]:
      raise ValueError(
        f'{key}={alpha} blends labels, but loss.name={section.name!r} uses no'
        f' labels. Set {key} to 0.'
      )
  length = math.prod(model.token_grid(tuple(config.image_size)))
  if section.name == MAE:
    return _build_autoencoder(config, model, length)
  if section.mask_share + section.other_share > 1 + 1e-6:
    raise ValueError(
      f'loss.mask_share={section.mask_share} and'
      f' loss.other_share={section.other_share} are shares of the corrupted'
      ' patches, so their sum must be at most 1.'
    )
  count = round(section.fraction * length)
  if length < 2 or not count:
    raise ValueError(
      f'loss.fraction={section.fraction} of the {length} patch(es) of an image'
      f' is {count}, but masked patch prediction corrupts at least one of at'
      ' least two patches. Raise loss.fraction, or choose smaller patches or'
      ' larger images.'
    )
  target = targets.build(
    section.target, tuple(model.patch_size), config.channels
  )
  return MaskedPatch(
    model.clone(patch_outputs=target.outputs),
    corruption.Corruption(
      length, count, section.mask_share, section.other_share
    ),
    target,
  )


def _build_autoencoder(
  config: ml_collections.ConfigDict, model: vit.ViT, length: int
) -> MaskedPatch:
  """Builds the task of a masked autoencoder; `length` counts the patches."""
  section = config.loss
  width, heads = section.decoder_width, section.decoder_heads
  visible = int(length * (1 - section.mask))  # As the authors round.
  if not visible:
    raise ValueError(
      f'loss.mask={section.mask} leaves 0 of the {length} patch(es) of an image'
      ' visible. Lower loss.mask, or choose smaller patches or larger images.'
    )
  if not width or width % (8 * heads):
    raise ValueError(
      f'loss.decoder_width={width} must be a multiple of 8 times'
      f' loss.decoder_heads={heads}.'
    )
  if config.lora.rank:
    raise ValueError(
      f'lora.rank={config.lora.rank} would leave the new decoder untrained. Set'
      ' it to 0, and tune after pre-training.'
    )
  target = targets.Target(
    'pixels', tuple(model.patch_size), config.channels, section.normalise
  )
  sizes = mae.Sizes(section.decoder_depth, width, heads, visible)
  return MaskedPatch(
    model.clone(patch_outputs=target.outputs, decoder=sizes),
    corruption.Corruption(length, length - visible, 1.0, 0.0),
    target,
  )


def _check_model(loss: str, model: nn.Module) -> None:
  untrained = 'adds a layer that is not trained. Choose'
  reason = ''
  if not isinstance(model, vit.ViT):
    reason = f'{type(model).__name__} has no patch embeddings'
  elif model.resnet_blocks is not None:
    reason = "a hybrid's patches contain information of their neighbours"
  elif model.representation_size is not None:
    size = model.representation_size
    reason = f'model.representation_size={size} {untrained} 0'
  elif model.pooling == 'map':
    reason = f"model.pooling='map' {untrained} 'token' or 'gap'"
  elif model.final_norm == 'pooled':
    reason = f"model.final_norm='pooled' {untrained} 'tokens'"
  elif model.distillation_token:
    reason = f'model.distillation_token=True {untrained} False'
  elif loss == MAE and (
    model.attention == 'axial'
    or model.relative
    or model.rotary
    or model.position_site != 'stem'
  ):
    reason = (
      'its blocks need all patches in their places. Use model.attention='
      "'full', position_site='stem' and neither rotary nor relative positions"
    )
  if reason:
    raise ValueError(
      f'loss.name={loss!r} needs a ViT without a ResNet, as in'
      f' configs/masked_patch.py, but {reason}.'
    )


class Measured(NamedTuple):
  """Measurements of each patch of a batch, corrupted or not.

  Attributes:
    corrupted: bool [B, L].
    loss: float32 [B, L].
    classes: int32 [B, L, N], the classes of the true colours; None in a masked
      autoencoder, also for the next one.
    predicted: int32 [B, L, N], the classes of the predicted colours.
  """

  corrupted: jax.Array
  loss: jax.Array
  classes: jax.Array | None = None
  predicted: jax.Array | None = None

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
  keys = corruption.image_keys(key, start + jnp.arange(len(batch['image'])))
  # Shard, so that each device draws only for its own images.
  keys = sharding.constrain(keys, sharding.BATCH)
  return batch | {'corruption_key': keys}


def make_prepare_batch(seed: int, layout: sharding.Layout) -> PrepareBatch:
  """Returns a function that calls `add_image_keys` with the step's key."""
  key = corruption.corruption_key(seed)

  def prepare_batch(batch, step):
    with sharding.use_mesh(layout.mesh):
      return add_image_keys(batch, jax.random.fold_in(key, step))

  return prepare_batch


def measure(
  task: MaskedPatch,
  params: Any,
  batch: Batch,
  *,
  dropout_key: jax.Array | None = None,
) -> Measured:
  """Corrupts images, predicts their patches, and compares them.

  Args:
    task: see `build`.
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
  found = Measured(corrupted, task.target.loss(predictions, pixels))
  if not task.has_accuracy:
    return found
  return found._replace(
    classes=task.target.classes(pixels),
    predicted=task.target.predicted_classes(predictions),
  )


def mean_loss(task: MaskedPatch) -> MeanLoss:
  """Returns the mean loss of the task, with the metric `accuracy` if it has.

  The paper leaves the reduction open; these are means over the corrupted
  patches of all images.

  Args:
    task: see `build`.
  """

  def function(params, batch, key):
    found = measure(task, params, batch, dropout_key=key)
    # Each image has the same number of corrupted patches: see `Corruption`.
    count = len(batch['image']) * task.corruption.count
    means = {'loss': found.loss}
    if task.has_accuracy:
      means['accuracy'] = found.accuracy
    for name, x in means.items():
      means[name] = jnp.sum(jnp.where(found.corrupted, x, 0.0)) / count
    return means.pop('loss'), means

  return function


def make_objective(
  config: ml_collections.ConfigDict, model: nn.Module, layout: sharding.Layout
) -> Objective:
  """Returns the objective of masked patches or of a masked autoencoder.

  Args:
    config: complete; see also `build`.
    model: the config's model.
    layout: how the batch is split.
  """
  task = build(config, model)
  prepare_batch = make_prepare_batch(config.seed, layout)
  return Objective(task.model, mean_loss(task), prepare_batch)
