"""Beyond the paper: answers to shifted images, by the number of images seen.

The paper says that translation equivariance is built into ResNets, and hardly
into ViTs (1, 3.1), but it does not measure it. That trained Transformers can
have as much of it as convolutional networks is the finding of arXiv:2210.02984.
"""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.item import grid, table
from vit_jax.paper.items import subsets

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


def _claims(scale: str) -> list[Claim]:
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


ITEM = table(
  'translation',
  'Answers to shifted images, by number of pre-training images',
  lambda scale: grid(subsets.few_and_all(scale), _COLUMNS),
  heading='Percent of test images',
  claims=_claims,
  notes=_NOTES,
  miniature=[
    'In miniature, the data set that stands for ImageNet asks where the shapes'
    ' are, and a shift moves the shapes. So this section instead uses'
    ' shapes:shape+colour, unless you use your own images.'
  ],
  beyond=True,
)
