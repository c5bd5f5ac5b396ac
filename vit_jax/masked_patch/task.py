"""Masked patch prediction as a section of a config describes it."""

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
  """What takes a classification loss's place.

  Attributes:
    corruption: of the patch embeddings.
    target: what is predicted of each corrupted patch.
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
  """Builds the section `loss` of that name.

  Args:
    model: see `models.build`.
    image_size: (height, width) in pixels.
    channels: of the images, at most 3.
    target: one of `targets.NAMES`.
    fraction: of the patches that are corrupted, rounded to whole patches.
    mask_share: of the corrupted patches, the part that gets the mask embedding.
    other_share: the part that gets another patch's embedding.

  Raises:
    ValueError: one of them cannot be, or the model has no patches of pixels.
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
      ' parts of the corrupted patches, and more than 1 together.'
    )
  length = math.prod(model.token_grid(tuple(image_size)))
  count = round(fraction * length)
  if length < 2 or not count:
    raise ValueError(
      f'loss.fraction={fraction} of the {length} patch(es) of an image is'
      f' {count}: masked patch prediction needs one at least, and an image of'
      ' two at least. Raise it, or choose smaller patches or larger images.'
    )
  return MaskedPatch(
    Corruption(length, count, mask_share, other_share),
    targets.build(target, tuple(model.patch_size), channels),
  )


def from_config(
  config: ml_collections.ConfigDict, model: nn.Module
) -> MaskedPatch:
  """Builds what a resolved config's section `loss` of that name describes.

  Raises:
    ValueError: see `build`; mixup, which blends labels; or another loss's keys.
  """
  if config.mixup_alpha:
    raise ValueError(
      f'mixup_alpha={config.mixup_alpha} blends labels, and'
      f' loss.name={MASKED_PATCH!r} uses none: set it to 0.'
    )
  section = config.loss.to_dict()
  del section['name']
  keys = {'target', 'fraction', 'mask_share', 'other_share'}
  if section.keys() != keys:
    raise ValueError(
      f'loss.name={MASKED_PATCH!r} has the keys {sorted(keys)}, and this'
      f' section {sorted(section)}: make it by config.masked_patch(), as'
      ' configs/masked_patch.py does.'
    )
  return build(model, tuple(config.image_size), config.channels, **section)


def adapted(model: nn.Module, task: MaskedPatch) -> nn.Module:
  """The model with a prediction for each patch in place of the classifier."""
  return model.clone(patch_outputs=task.target.outputs)


def _check_model(model: nn.Module) -> None:
  needs = f'loss.name={MASKED_PATCH!r} needs'
  if not isinstance(model, vit.ViT):
    raise ValueError(
      f'{needs} a ViT, and {type(model).__name__} has no patch embeddings.'
    )
  if model.resnet_blocks is not None:
    raise ValueError(
      f'{needs} patches of pixels: those of a hybrid have seen their'
      ' neighbours. Choose a ViT without a ResNet.'
    )
  if model.representation_size is not None:
    raise ValueError(
      f'model.representation_size={model.representation_size}:'
      f' loss.name={MASKED_PATCH!r} would not train that layer, and it has no'
      ' classifier. Leave it unset.'
    )
  if model.pooling == 'map':
    raise ValueError(
      f"model.pooling='map': loss.name={MASKED_PATCH!r} would not train that"
      " head. Choose 'token' or 'gap'."
    )
