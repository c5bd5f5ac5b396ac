"""Position embeddings are like sinusoids on larger grids (4.5, Figure 7)."""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.item import grid, table
from vit_jax.paper.items.figures.from_weights import small_positions
from vit_jax.paper.runs import Pretraining, structure

_WAVES = NUMBERS['position_waves']


def _starts(scale: str) -> dict[str, Pretraining]:
  """Returns the first run on the smaller and on the larger grid."""
  grids = (7, 14) if scale == 'paper' else (4, 8)
  starts = [Pretraining(name, epochs=7) for name in ('ViT-L/32', 'ViT-L/16')]
  if structure(scale) == 'mini':
    starts = [
      small_positions(28, options=options, label=f'{size} px patches')
      for size in (6, 3)
      for options in [(('model.patch_size', (size, size)),)]
    ]
  return {
    f'{n}x{n} patches': start for n, start in zip(grids, starts, strict=True)
  }


def _claims(scale: str) -> list[Claim]:
  small, large = map(_WAVES, _starts(scale).values())
  return [
    Claim(
      'larger_grids',
      'Position embeddings are more like sinusoids on larger grids: there, slow'
      ' waves have a larger share of their variance (4.5, D.4).',
      {
        'share of slow waves on the larger grid minus that on the smaller': (
          large - small
        )
      },
    )
  ]


ITEM = table(
  'sinusoids',
  'Structure of position embeddings by size of the grid',
  lambda scale: grid(
    _starts(scale),
    {'slow waves': _WAVES, 'nearness': NUMBERS['position_locality']},
  ),
  heading='Beyond chance',
  claims=_claims,
  notes=[
    'The share is beyond that of shuffled positions, as in Figure 7. Nearness'
    ' is the rank correlation of similarity and nearness.'
  ],
)
