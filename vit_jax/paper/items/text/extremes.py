"""The smallest ResNet and the largest ViT, on few and all images (Figure 4)."""

from vit_jax.paper import claims
from vit_jax.paper.claims import EARLY_STOPPED, Claim
from vit_jax.paper.item import table
from vit_jax.paper.items import subsets

_SMALLEST, _LARGEST = 'BiT-R50x1', 'ViT-L/16'
_FEW, _ALL = '9M images', 'all images'
_CELLS = {
  (model, column): EARLY_STOPPED(subsets.start(model, images))
  for model in subsets.MODELS
  for column, images in {_FEW: subsets.IMAGES[0], _ALL: None}.items()
}


def _lead(one: str, other: str, column: str) -> claims.Sum:
  return _CELLS[one, column] - _CELLS[other, column]


_CLAIMS = [
  Claim(
    'smallest_first',
    f'On 9M images, even the smallest ResNet, {_SMALLEST}, is ahead of the'
    f' largest ViT, {_LARGEST} (Figure 4).',
    {f'lead of {_SMALLEST} on 9M images': _lead(_SMALLEST, _LARGEST, _FEW)},
  ),
  Claim(
    'largest_last',
    f'On all images, the largest ViT, {_LARGEST}, is ahead of all other'
    ' models (Figure 4).',
    {
      f'lead over {model} on all images': _lead(_LARGEST, model, _ALL)
      for model in subsets.MODELS
      if model != _LARGEST
    },
  ),
]

ITEM = table(
  'extremes',
  'The smallest ResNet and the largest ViT, by number of images',
  _CELLS,
  heading='5-shot accuracy on ImageNet, in percent',
  claims=claims.not_in_miniature(claims.PLATEAU, _CLAIMS),
  notes=['The runs are those of Figure 4, at the step that validates best.'],
)
