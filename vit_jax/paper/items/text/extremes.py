"""The smallest ResNet and the largest ViT, on few and all images (Figure 4)."""

from vit_jax.paper.claims import (
  EARLY_STOPPED,
  PLATEAU,
  Claim,
  Mean,
  not_in_miniature,
)
from vit_jax.paper.item import of_means
from vit_jax.paper.items.figures import figure4

_SMALLEST, _LARGEST = 'BiT-R50x1', 'ViT-L/16'
_FEW, *_, _ALL = figure4.IMAGES
_RIVALS = tuple(name for name in figure4.MODELS if name != _LARGEST)


def _at(model: str, images: int | None) -> Mean:
  return EARLY_STOPPED(figure4.start(model, images))


_CLAIMS = [
  Claim(
    'smallest_first',
    f'On 9M images, even the smallest ResNet, {_SMALLEST}, is ahead of the'
    f' largest ViT, {_LARGEST} (Figure 4).',
    {
      f'lead of {_SMALLEST} on 9M images': _at(_SMALLEST, _FEW)
      - _at(_LARGEST, _FEW)
    },
  ),
  Claim(
    'largest_last',
    f'On all images, the largest ViT, {_LARGEST}, is ahead of all other'
    ' models (Figure 4).',
    {
      f'lead over {model} on all images': _at(_LARGEST, _ALL) - _at(model, _ALL)
      for model in _RIVALS
    },
  ),
]

_NOTE = 'The runs are those of Figure 4, at the step that validates best.'


ITEM = of_means(
  'extremes',
  'The smallest ResNet and the largest ViT, by number of images',
  {
    (model, column): _at(model, images)
    for model in figure4.MODELS
    for column, images in {'9M images': _FEW, 'all images': _ALL}.items()
  },
  heading='5-shot accuracy on ImageNet, in percent',
  claims=not_in_miniature(PLATEAU, _CLAIMS),
  notes=[_NOTE],
  curves=True,
)
