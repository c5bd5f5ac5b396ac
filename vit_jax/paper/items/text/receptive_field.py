"""The receptive field of a ResNet beside attention distance (4.5).

The paper calls attention distance the analogue of a CNN's receptive field.
"""

from vit_jax.paper.claims import Claim, Contrast, Mean, inside, total
from vit_jax.paper.inside import NUMBERS, maps
from vit_jax.paper.item import of_means
from vit_jax.paper.items.figures.from_weights import LARGE
from vit_jax.paper.runs import Pretraining, Results

_RESNET = Pretraining('BiT-R50x1', epochs=7)


def first_stage(workdir: str) -> float:
  """Returns the effective receptive field after the first stage, in px."""
  return maps.receptive_field(workdir, 1)


def last_stage(workdir: str) -> float:
  """Returns the same after the last stage."""
  return maps.receptive_field(workdir, None)


_FIRST, _LAST = (
  inside(
    f'{__name__}:{function.__name__}',
    f'effective receptive field after the {which} stage, in px',
    1,
  )
  for function, which in ((first_stage, 'first'), (last_stage, 'last'))
)


def _cells(scale: str) -> dict[tuple[str, str], Mean]:
  del scale
  return {
    (f'{_RESNET.model}, receptive field', 'early'): Mean(_FIRST, _RESNET),
    (f'{_RESNET.model}, receptive field', 'late'): Mean(_LAST, _RESNET),
    (f'{LARGE.model}, attention distance', 'early'): Mean(
      NUMBERS['early_distance'], LARGE
    ),
    (f'{LARGE.model}, attention distance', 'late'): Mean(
      NUMBERS['late_distance'], LARGE
    ),
  }


def _claims(scale: str) -> list[Claim]:
  del scale
  return [
    Claim(
      'grows_with_depth',
      "A ResNet's receptive field grows with the depth, as attention distance"
      ' does in a ViT (4.5).',
      (
        Contrast(
          f'growth of the field of {_RESNET.model}',
          total(_LAST, _RESNET) - total(_FIRST, _RESNET),
        ),
        Contrast(
          f'growth of the distance of {LARGE.model}',
          total(NUMBERS['late_distance'], LARGE)
          - total(NUMBERS['early_distance'], LARGE),
        ),
      ),
    )
  ]


def _notes(results: Results) -> list[str]:
  del results
  return [
    'The receptive field is the mean distance of pixels, weighted by the'
    ' absolute gradient of the features in the middle of the image'
    ' (arXiv:1701.04128), over 16 held-out images. Early and late are the first'
    ' and the last stage, or the first and the last quarter of the blocks.'
  ]


ITEM = of_means(
  'receptive_field',
  'Receptive field of a ResNet, and attention distance of a ViT',
  _cells,
  heading='In px',
  claims=_claims,
  notes=_notes,
)
