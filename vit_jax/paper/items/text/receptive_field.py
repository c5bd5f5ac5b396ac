"""The receptive field of a ResNet beside attention distance (4.5).

The paper calls attention distance the analogue of a CNN's receptive field.
"""

from vit_jax.paper.claims import Claim, inside
from vit_jax.paper.inside import NUMBERS, maps
from vit_jax.paper.item import of_means
from vit_jax.paper.items.figures.from_weights import LARGE
from vit_jax.paper.runs import Pretraining

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


_FIELDS = {'early': _FIRST(_RESNET), 'late': _LAST(_RESNET)}
_DISTANCES = {
  when: NUMBERS[f'{when}_distance'](LARGE) for when in ('early', 'late')
}
_CLAIM = Claim(
  'grows_with_depth',
  "A ResNet's receptive field grows with the depth, as attention distance"
  ' does in a ViT (4.5).',
  {
    f'growth of the {what} of {mean["late"].start.model}': mean['late']
    - mean['early']
    for what, mean in (('field', _FIELDS), ('distance', _DISTANCES))
  },
)
_NOTE = (
  'The receptive field is the mean distance of pixels, weighted by the'
  ' absolute gradient of the features in the middle of the image'
  ' (arXiv:1701.04128), over 16 held-out images. Early and late are the first'
  ' and the last stage, or the first and the last quarter of the blocks.'
)


ITEM = of_means(
  'receptive_field',
  'Receptive field of a ResNet, and attention distance of a ViT',
  {
    (f'{of.start.model}, {what}', column): of
    for what, means in (
      ('receptive field', _FIELDS),
      ('attention distance', _DISTANCES),
    )
    for column, of in means.items()
  },
  heading='In px',
  claims=[_CLAIM],
  notes=[_NOTE],
)
