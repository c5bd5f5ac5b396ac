"""Position embeddings are like sinusoids on larger grids (4.5, Figure 7)."""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.item import Cells, of_means
from vit_jax.paper.items.figures.from_weights import small_positions
from vit_jax.paper.runs import Pretraining, structure


def _starts(scale: str) -> dict[str, Pretraining]:
  """Returns the first run on the smaller and on the larger grid."""
  if structure(scale) == 'paper':
    small, large = (7, 14) if scale == 'paper' else (4, 8)
    return {
      f'{small}x{small} patches': Pretraining('ViT-L/32', epochs=7),
      f'{large}x{large} patches': Pretraining('ViT-L/16', epochs=7),
    }
  return {
    f'{24 // size}x{24 // size} patches': small_positions(
      28,
      options=(('model.patch_size', (size, size)),),
      label=f'{size} px patches',
    )
    for size in (6, 3)
  }


def _cells(scale: str) -> Cells:
  kinds = {'slow waves': 'position_waves', 'nearness': 'position_locality'}
  return {
    (grid, column): NUMBERS[kind](start)
    for grid, start in _starts(scale).items()
    for column, kind in kinds.items()
  }


def _claims(scale: str) -> list[Claim]:
  small, large = map(NUMBERS['position_waves'], _starts(scale).values())
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


_NOTE = (
  'The share is beyond that of shuffled positions, as in Figure 7. Nearness'
  ' is the rank correlation of similarity and nearness.'
)


ITEM = of_means(
  'sinusoids',
  'Structure of position embeddings by size of the grid',
  _cells,
  heading='Beyond chance',
  claims=_claims,
  notes=[_NOTE],
)
