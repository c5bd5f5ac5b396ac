"""ViTs overfit more than ResNets on little data (Section 4.3)."""

from vit_jax.paper import claims
from vit_jax.paper.claims import Claim, of_run
from vit_jax.paper.item import grid, table
from vit_jax.paper.items import subsets

_TRAIN = of_run('accuracy on training images in percent', 'train/accuracy')
_HELD_OUT = of_run(
  'accuracy on held-out images in percent', 'validation/accuracy'
)
_GAP = claims.difference(
  'accuracy on training images minus that on held-out ones, in points',
  _TRAIN,
  _HELD_OUT,
)


def _claims(scale: str) -> list[Claim]:
  vit, resnet = subsets.rivals(scale)
  few, every, of_resnet, _ = map(_GAP, subsets.few_and_all(scale).values())
  found = [
    Claim(
      'vits_overfit_more',
      'On 9M images, ViTs overfit more than ResNets of comparable compute: the'
      f' gap of accuracy between training and held-out images is larger for'
      f' {vit} than for {resnet} (4.3).',
      {f'gap of {vit} minus that of {resnet}': few - of_resnet},
    ),
    Claim(
      'data_cure_it',
      f'On all images, the gap of {vit} is smaller than on 9M images (4.3).',
      {'gap on 9M images minus that on all': few - every},
    ),
  ]
  return claims.not_in_miniature(claims.PLATEAU, found)


ITEM = table(
  'overfitting',
  'Accuracy on training and on held-out images, by number of images',
  lambda scale: grid(
    subsets.few_and_all(scale),
    {'training': _TRAIN, 'held out': _HELD_OUT, 'gap': _GAP},
  ),
  heading='Accuracy of pre-training, in percent',
  claims=_claims,
  notes=[
    'Both accuracies are of the last step, without early stopping. That on'
    ' training images is a mean over batches, each before its own step.'
  ],
)
