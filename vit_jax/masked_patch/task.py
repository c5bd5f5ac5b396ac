"""Builds the task of masked patch prediction from a section of a config."""

import dataclasses
import math

import flax.linen as nn
import ml_collections

from vit_jax.config.sections import MASKED_PATCH
from vit_jax.masked_patch import targets
from vit_jax.masked_patch.corruption import Corruption
from vit_jax.models import vit


@dataclasses.dataclass(frozen=True)
class MaskedPatch:
  """The task that replaces a classification loss.

  Attributes:
    corruption: how patch embeddings are corrupted.
    target: the prediction target of each corrupted patch.
  """

  corruption: Corruption
  target: targets.Target


def build(
  model: nn.Module,
  image_size: tuple[int, int],
  channels: int,
  *,
  target: str,
  fraction: float,
  mask_share: float,
  other_share: float,
) -> MaskedPatch:
  """Builds the task from the values of its section `loss`.

  Args:
    model: see `models.build`.
    image_size: (height, width) in pixels.
    channels: channels of the images, at most 3.
    target: one of `targets.NAMES`.
    fraction: share of the patches to corrupt, rounded to whole patches.
    mask_share: share of the corrupted patches that gets the mask embedding.
    other_share: share that gets another patch's embedding.

  Raises:
    ValueError: a value is invalid, or the model cannot learn the task.
  """
  _check_model(model)
  for key, value in (
    ('fraction', fraction),
    ('mask_share', mask_share),
    ('other_share', other_share),
  ):
    if not 0 <= value <= 1:
      raise ValueError(f'loss.{key}={value} must lie in [0, 1].')
  if mask_share + other_share > 1 + 1e-6:
    raise ValueError(
      f'loss.mask_share={mask_share} and loss.other_share={other_share} are'
      ' shares of the corrupted patches, so their sum must be at most 1.'
    )
  length = math.prod(model.token_grid(tuple(image_size)))
  count = round(fraction * length)
  if length < 2 or not count:
    raise ValueError(
      f'loss.fraction={fraction} of the {length} patch(es) of an image is'
      f' {count}, but masked patch prediction corrupts at least one of at least'
      ' two patches. Raise loss.fraction, or choose smaller patches or larger'
      ' images.'
    )
  return MaskedPatch(
    Corruption(length, count, mask_share, other_share),
    targets.build(target, tuple(model.patch_size), channels),
  )


def from_config(
  config: ml_collections.ConfigDict, model: nn.Module
) -> MaskedPatch:
  """Builds the task of a resolved config.

  Raises:
    ValueError: see `build`; or the config uses mixup or CutMix, which blend
      labels, or has the keys of another loss.
  """
  for key in ('mixup_alpha', 'cutmix_alpha'):
    # A saved run may be older than the second key.
    if alpha := config.get(key, 0.0):
      raise ValueError(
        f'{key}={alpha} blends labels, but loss.name={MASKED_PATCH!r} uses no'
        f' labels. Set {key} to 0.'
      )
  section = config.loss.to_dict()
  del section['name']
  keys = {'target', 'fraction', 'mask_share', 'other_share'}
  if section.keys() != keys:
    raise ValueError(
      f'loss.name={MASKED_PATCH!r} needs the keys {sorted(keys)}, but this'
      f' section has {sorted(section)}. Make it by config.masked_patch(), as'
      ' configs/masked_patch.py does.'
    )
  return build(model, tuple(config.image_size), config.channels, **section)


def adapted(model: nn.Module, task: MaskedPatch) -> nn.Module:
  """Returns the model with a prediction per patch instead of a classifier."""
  return model.clone(patch_outputs=task.target.outputs)


def _check_model(model: nn.Module) -> None:
  needs = f'loss.name={MASKED_PATCH!r} needs'
  if not isinstance(model, vit.ViT):
    raise ValueError(
      f'{needs} a ViT, but {type(model).__name__} has no patch embeddings.'
    )
  if model.resnet_blocks is not None:
    raise ValueError(
      f'{needs} patches of pixels, but those of a hybrid contain information of'
      ' their neighbours. Choose a ViT without a ResNet.'
    )
  if model.representation_size is not None:
    raise ValueError(
      f'model.representation_size={model.representation_size} adds a layer'
      f' before the classifier, which loss.name={MASKED_PATCH!r} does not'
      ' train. Leave it unset.'
    )
  if model.pooling == 'map':
    raise ValueError(
      f"model.pooling='map' adds a head, which loss.name={MASKED_PATCH!r} does"
      " not train. Choose 'token' or 'gap'."
    )
