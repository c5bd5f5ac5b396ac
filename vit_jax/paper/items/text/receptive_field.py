"""The receptive field of a ResNet beside attention distance (4.5).

The paper calls attention distance the analogue of a CNN's receptive field.
"""

from vit_jax.paper.claims import Claim, Mean, inside
from vit_jax.paper.inside import NUMBERS, maps
from vit_jax.paper.item import table
from vit_jax.paper.items.figures.from_weights import LARGE
from vit_jax.paper.runs import Pretraining

_RESNET = Pretraining('BiT-R50x1', epochs=7)


def first_stage(workdir: str) -> float:
  """Returns the effective receptive field after the first stage, in px."""
  return maps.receptive_field(workdir, 1)


def last_stage(workdir: str) -> float:
  """Returns the same after the last stage."""
  return maps.receptive_field(workdir, None)


def _field(which: str) -> Mean:
  name = f'effective receptive field after the {which} stage, in px'
  return inside(f'{__name__}:{which}_stage', name, 1)(_RESNET)


_FIELDS = 'BiT-R50x1, receptive field'
_DISTANCES = 'ViT-L/16, attention distance'
_CELLS = {
  (_FIELDS, 'early'): _field('first'),
  (_FIELDS, 'late'): _field('last'),
  (_DISTANCES, 'early'): NUMBERS['early_distance'](LARGE),
  (_DISTANCES, 'late'): NUMBERS['late_distance'](LARGE),
}
_CLAIM = Claim(
  'grows_with_depth',
  "A ResNet's receptive field grows with the depth, as attention distance"
  ' does in a ViT (4.5).',
  {
    f'growth of the {what} of {row.partition(",")[0]}': _CELLS[row, 'late']
    - _CELLS[row, 'early']
    for what, row in (('field', _FIELDS), ('distance', _DISTANCES))
  },
)

ITEM = table(
  'receptive_field',
  'Receptive field of a ResNet, and attention distance of a ViT',
  _CELLS,
  heading='In px',
  claims=[_CLAIM],
  notes=[
    'The receptive field is the mean distance of pixels, weighted by the'
    ' absolute gradient of the features in the middle of the image'
    ' (arXiv:1701.04128), over 16 held-out images. Early and late are the first'
    ' and the last stage, or the first and the last quarter of the blocks.'
  ],
)
