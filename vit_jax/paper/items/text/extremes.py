"""The smallest ResNet and the largest ViT, on few and all images (Figure 4)."""

from vit_jax.paper.claims import (
  EARLY_STOPPED,
  PLATEAU,
  Claim,
  Contrast,
  Mean,
  not_in_miniature,
  total,
)
from vit_jax.paper.item import of_means
from vit_jax.paper.items.figures import figure4
from vit_jax.paper.runs import Results

_SMALLEST, _LARGEST = 'BiT-R50x1', 'ViT-L/16'
_FEW, *_, _ALL = figure4.IMAGES
_COLUMNS = {'9M images': _FEW, 'all images': _ALL}
_RIVALS = tuple(name for name in figure4.MODELS if name != _LARGEST)


def _cells(scale: str) -> dict[tuple[str, str], Mean]:
  del scale
  return {
    (model, column): Mean(EARLY_STOPPED, figure4.start(model, images))
    for model in figure4.MODELS
    for column, images in _COLUMNS.items()
  }


def _claims(scale: str) -> list[Claim]:
  del scale

  def at(model: str, images: int | None):
    return total(EARLY_STOPPED, figure4.start(model, images))

  claims = [
    Claim(
      'smallest_first',
      f'On 9M images, even the smallest ResNet, {_SMALLEST}, is ahead of the'
      f' largest ViT, {_LARGEST} (Figure 4).',
      (
        Contrast(
          f'lead of {_SMALLEST} on 9M images',
          at(_SMALLEST, _FEW) - at(_LARGEST, _FEW),
        ),
      ),
    ),
    Claim(
      'largest_last',
      f'On all images, the largest ViT, {_LARGEST}, is ahead of all other'
      ' models (Figure 4).',
      tuple(
        Contrast(
          f'lead over {model} on all images',
          at(_LARGEST, _ALL) - at(model, _ALL),
        )
        for model in _RIVALS
      ),
    ),
  ]
  return not_in_miniature(PLATEAU, claims)


def _notes(results: Results) -> list[str]:
  del results
  return ['The runs are those of Figure 4, at the step that validates best.']


ITEM = of_means(
  'extremes',
  'The smallest ResNet and the largest ViT, by number of images',
  _cells,
  heading='5-shot accuracy on ImageNet, in percent',
  claims=_claims,
  notes=_notes,
  curves=True,
)
