"""The task of masked patch prediction: what is corrupted, and what predicted.

The corruption is a function of one key per image, so it depends neither on the
mesh nor on the number of micro-batches.

Axes: `B` batch, `L` patches of an image.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax.config.sections import MASKED_PATCH
from vit_jax.masked_patch import targets
from vit_jax.models import vit
from vit_jax.models.vit import MASK

_RNG = 'threefry2x32'  # Fast enough here; independent of dropout's generator.


@dataclasses.dataclass(frozen=True)
class Corruption:
  """How patch embeddings are corrupted (B.1.2).

  The paper leaves some details open. Here, each image has the same number of
  corrupted patches, so that a mean over them does not depend on how a batch is
  split. The kind of corruption is drawn independently for each patch. A
  replacement patch comes from the same image; all positions except the patch's
  own are equally likely.

  Attributes:
    length: L.
    count: number of corrupted patches of each image.
    mask_share: expected share of them that gets the mask embedding.
    other_share: expected share that gets another patch's embedding; the rest
      keeps its own.
  """

  length: int
  count: int
  mask_share: float
  other_share: float

  def draw(self, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws the corruption of images.

    Args:
      keys: uint32 [B, 2], see `image_keys`.

    Returns:
      corrupted: bool [B, L], with `count` True values in each row.
      source: int32 [B, L], the position whose embedding each patch gets (its
        own or another), or MASK.
    """
    return jax.vmap(self._draw_one)(jax.random.wrap_key_data(keys, impl=_RNG))

  def _draw_one(self, key):
    order_key, kind_key, other_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, self.length)  # [L]
    kind = jax.random.uniform(kind_key, (self.length,))
    distance = jax.random.randint(other_key, (self.length,), 1, self.length)
    own = jnp.arange(self.length)
    other = (own + distance) % self.length
    corrupted = order < self.count
    source = jnp.where(
      kind < self.mask_share,
      MASK,
      jnp.where(kind < self.mask_share + self.other_share, other, own),
    )
    return corrupted, jnp.where(corrupted, source, own)


def corruption_key(seed: int) -> jax.Array:
  """Returns the key for the corruption of a run's training images."""
  return jax.random.fold_in(jax.random.key(seed, impl=_RNG), 3)


def image_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
  """Returns a key for each image, as numbers that a batch can hold.

  Args:
    key: the key of the batch or of the data set.
    rows: int32 [B], the indices of the images in it.

  Returns:
    uint32 [B, 2].
  """
  return jax.random.key_data(
    jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
  )


@dataclasses.dataclass(frozen=True)
class MaskedPatch:
  """The task that replaces a classification loss.

  Attributes:
    model: the model, with a prediction per patch instead of a classifier.
    corruption: how patch embeddings are corrupted.
    target: the prediction target of each corrupted patch.
  """

  model: nn.Module
  corruption: Corruption
  target: targets.Target


def build(config: ml_collections.ConfigDict, model: nn.Module) -> MaskedPatch:
  """Builds the task of a resolved config.

  Args:
    config: its section `loss` has the keys of `config.masked_patch`.
    model: see `models.build`; a classifier, or the model of the task itself.

  Raises:
    ValueError: the section does not suit the images; the
      model cannot learn the task; or the config uses mixup or CutMix, which
      blend labels.
  """
  _check_model(model)
  section = config.loss
  for key in ('mixup_alpha', 'cutmix_alpha'):
    # A saved run may be older than the second key.
    if alpha := config.get(key, 0.0):
      raise ValueError(
        f'{key}={alpha} blends labels, but loss.name={MASKED_PATCH!r} uses no'
        f' labels. Set {key} to 0.'
      )
  if section.mask_share + section.other_share > 1 + 1e-6:
    raise ValueError(
      f'loss.mask_share={section.mask_share} and'
      f' loss.other_share={section.other_share} are shares of the corrupted'
      ' patches, so their sum must be at most 1.'
    )
  length = math.prod(model.token_grid(tuple(config.image_size)))
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
    Corruption(length, count, section.mask_share, section.other_share),
    target,
  )


def _check_model(model: nn.Module) -> None:
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
  if reason:
    raise ValueError(
      f'loss.name={MASKED_PATCH!r} needs a ViT without a ResNet, as in'
      f' configs/masked_patch.py, but {reason}.'
    )
