"""Claims beyond the paper: do ViTs learn to bear shifts from more images?

The paper says that translation equivariance is built into ResNets, and hardly
into ViTs (1, 3.1), but it does not measure it. That trained Transformers can
have as much of it as convolutional networks is the finding of arXiv:2210.02984.
"""

from vit_jax.paper.claims import curve_claims
from vit_jax.paper.claims.claim import Claim, Contrast, Sum, total
from vit_jax.paper.claims.measures import Inside
from vit_jax.paper.runs import Pretraining, structure

VIT = 'ViT-B/32'
FEW, *_, ALL = curve_claims.IMAGES
NAMES = {FEW: '9M images', ALL: 'all images'}
_BEYOND = 'Beyond the paper: '
_SHIFT = 'A shift is by a quarter of a patch of 32 px.'


def starts(scale: str) -> dict[tuple[str, int | None], Pretraining]:
  """Returns (model, images) -> the first run, which is one of Figure 4's."""
  return {
    (model, images): curve_claims.run(model, images=images)
    for model in (VIT, curve_claims.RESNET[structure(scale)])
    for images in NAMES
  }


def translation(scale: str) -> list[Claim]:
  """How the share of answers that a shift changes depends on the images."""
  resnet = curve_claims.RESNET[structure(scale)]
  runs = starts(scale)

  def of(model: str, images: int | None) -> Sum:
    return total(Inside('shift_quarter'), runs[model, images])

  def gap(images: int | None) -> Sum:
    return of(VIT, images) - of(resnet, images)

  return [
    Claim(
      'resnet_steadier_on_few',
      f'{_BEYOND}after pre-training on 9M images, a shift changes fewer answers'
      f' of {resnet} than of {VIT}.',
      (Contrast(f'changes of {VIT} minus those of {resnet}', gap(FEW)),),
      f'{_SHIFT} The paper names this bias of ResNets (3.1).',
    ),
    Claim(
      'vit_learns_it',
      f'{_BEYOND}a shift changes fewer answers of {VIT} after pre-training on'
      ' all images than after pre-training on 9M images (arXiv:2210.02984).',
      (
        Contrast(
          f'changes of {VIT} after 9M images minus those after all',
          of(VIT, FEW) - of(VIT, ALL),
        ),
      ),
      _SHIFT,
    ),
    Claim(
      'gap_shrinks',
      f'{_BEYOND}with more pre-training images, {VIT} comes closer to {resnet}.'
      f' The share of answers that change is larger for {VIT}. This difference'
      ' is smaller after all images than after 9M images.',
      (
        Contrast(
          f'changes of {VIT} beyond those of {resnet}: after 9M images minus'
          ' after all',
          gap(FEW) - gap(ALL),
        ),
      ),
      _SHIFT,
    ),
  ]
