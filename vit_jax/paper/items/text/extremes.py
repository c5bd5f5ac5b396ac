"""The smallest ResNet and the largest ViT, on few and all images (Figure 4)."""

from vit_jax.paper import claims
from vit_jax.paper.claims import EARLY_STOPPED, Claim
from vit_jax.paper.item import table
from vit_jax.paper.items import subsets
from vit_jax.paper.items.subsets import ALL, FEW, NAMES

_SMALLEST, _LARGEST = 'BiT-R50x1', 'ViT-L/16'
_CELLS = {
  (model, NAMES[images]): EARLY_STOPPED(subsets.start(model, images))
  for model in subsets.MODELS
  for images in (FEW, ALL)
}


def _lead(one: str, other: str, images: int | None) -> claims.Sum:
  return _CELLS[one, NAMES[images]] - _CELLS[other, NAMES[images]]


_CLAIMS = [
  Claim(
    'smallest_first',
    f'On 9M images, even the smallest ResNet, {_SMALLEST}, is ahead of the'
    f' largest ViT, {_LARGEST} (Figure 4).',
    {f'lead of {_SMALLEST} on 9M images': _lead(_SMALLEST, _LARGEST, FEW)},
  ),
  Claim(
    'largest_last',
    f'On all images, the largest ViT, {_LARGEST}, is ahead of all other'
    ' models (Figure 4).',
    {
      f'lead over {model} on all images': _lead(_LARGEST, model, ALL)
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
