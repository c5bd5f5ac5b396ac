"""Beyond the paper: answers to shifted images, and their features.

The paper says that translation equivariance is built into ResNets, and hardly
into ViTs (1, 3.1), but it does not measure it. That trained Transformers can
have as much of it as convolutional networks is the finding of arXiv:2210.02984.
`translation` counts answers, which are the same if features are invariant;
`equivariance` asks whether features move with the image.
"""

import functools

from vit_jax.paper.claims import Claim, inside
from vit_jax.paper.inside import NUMBERS, maps, shifting, weights
from vit_jax.paper.item import grid, table
from vit_jax.paper.items.figures import subsets

# Answers. ---------------------------------------------------------------------

_COLUMNS = {
  '5-shot accuracy': NUMBERS['shift_accuracy'],
  'lost by 1/4 patch': NUMBERS['shift_loss'],
  'changed by 1/8 patch': NUMBERS['shift_eighth'],
  'changed by 1/4 patch': NUMBERS['shift_quarter'],
}
_NOTES = (
  'The claims are from the literature. arXiv:2210.02984 finds that Transformers'
  ' can learn translation equivariance. We count changed answers as'
  ' arXiv:1904.11486 does.',
  'The models are those of Figure 4. The answers are those of a 5-shot'
  " classifier of the model's features, fitted to unshifted images. Each number"
  ' is the mean over shifts up, down, left and right, in patches of 32 px for'
  ' images of 224 px. A model that knows little changes many answers, so the'
  ' table also shows the accuracy.',
)
_SHIFT = 'A shift is by a quarter of a patch of 32 px.'


def _translation_claims(scale: str) -> list[Claim]:
  vit, resnet = subsets.rivals(scale)
  few, every, resnet_few, resnet_every = map(
    NUMBERS['shift_quarter'], subsets.few_and_all(scale).values()
  )
  return [
    Claim(
      'resnet_steadier_on_few',
      'Beyond the paper: after pre-training on 9M images, a shift changes fewer'
      f' answers of {resnet} than of {vit}.',
      {f'changes of {vit} minus those of {resnet}': few - resnet_few},
      f'{_SHIFT} The paper names this bias of ResNets (3.1).',
    ),
    Claim(
      'vit_learns_it',
      f'Beyond the paper: a shift changes fewer answers of {vit} after'
      ' pre-training on all images than after pre-training on 9M images'
      ' (arXiv:2210.02984).',
      {f'changes of {vit} after 9M images minus those after all': few - every},
      _SHIFT,
    ),
    Claim(
      'gap_shrinks',
      f'Beyond the paper: with more pre-training images, {vit} comes closer to'
      f' {resnet}. The share of answers that change is larger for {vit}. This'
      ' difference is smaller after all images than after 9M images.',
      {
        f'changes of {vit} beyond those of {resnet}: after 9M images minus'
        ' after all': (few - resnet_few) - (every - resnet_every)
      },
      _SHIFT,
    ),
  ]


TRANSLATION = table(
  'translation',
  'Answers to shifted images, by number of pre-training images',
  lambda scale: grid(subsets.few_and_all(scale), _COLUMNS),
  heading='Percent of test images',
  claims=_translation_claims,
  notes=_NOTES,
  miniature=[
    'In miniature, the data set that stands for ImageNet asks where the shapes'
    ' are, and a shift moves the shapes. So this section instead uses'
    ' shapes:shape+colour, unless you use your own images.'
  ],
  beyond=True,
)


# Features. --------------------------------------------------------------------


@functools.cache  # Both numbers come from the same features.
def _moved(workdir: str) -> tuple[float, float]:
  patch = shifting.patch_of(weights.load(workdir).image_size[0])
  return maps.moved(workdir, patch)


_CHANGES = {
  'moved along': inside(
    'moved_along',
    'change of features that move with the image, in percent',
    1,
    lambda workdir: _moved(workdir)[0],
  ),
  'same place': inside(
    'moved_at_place',
    'change of features at the same place, in percent',
    1,
    lambda workdir: _moved(workdir)[1],
  ),
}


def _equivariance_claims(scale: str) -> list[Claim]:
  vit, resnet = subsets.rivals(scale)
  few, every, _, of_resnet = map(
    _CHANGES['moved along'], subsets.few_and_all(scale).values()
  )
  return [
    Claim(
      'resnet_is_equivariant',
      f'Beyond the paper: features of {resnet} move with the image more exactly'
      f' than those of {vit}, after pre-training on all images.',
      {f'change of {vit} minus that of {resnet}': every - of_resnet},
    ),
    Claim(
      'vit_learns_it',
      f'Beyond the paper: features of {vit} move with the image more exactly'
      ' after pre-training on all images than on 9M images (arXiv:2210.02984).',
      {'change after 9M images minus that after all': few - every},
    ),
  ]


EQUIVARIANCE = table(
  'equivariance',
  'Features of shifted images, by number of pre-training images',
  lambda scale: grid(subsets.few_and_all(scale), _CHANGES),
  heading='Change in percent',
  claims=_equivariance_claims,
  notes=[
    'Images are rolled by a patch of 32 px at 224 px. A change of 100 is as'
    ' large as the difference of features of different images. The features of'
    ' a ResNet are those of its last stage; in miniature, of an earlier one.'
  ],
  beyond=True,
)
