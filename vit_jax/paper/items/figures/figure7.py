"""Figure 7: filters, position embeddings and attention distances (4.5)."""

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.items.figures.from_weights import IMAGES, LARGE
from vit_jax.paper.runs import Pretraining, structure

# Structure -> the run whose filters and positions the figure shows.
STUDIED = {
  'paper': Pretraining('ViT-L/32', epochs=7),
  'mini': from_weights.small_positions(28),
}


def _panels(scale: str) -> list[Panel]:
  studied = STUDIED[structure(scale)]
  return [
    Panel('filters', studied.model, studied),
    Panel('position_similarity', studied.model, studied),
    Panel('attention_distance', LARGE.model, LARGE, IMAGES),
  ]


def _claims(scale: str) -> list[Claim]:
  studied = STUDIED[structure(scale)]
  return [
    Claim(
      'distance_grows',
      'In deeper blocks, attention reaches farther over the image: the'
      ' attention distance grows with the depth of the block (4.5, Figure 7).',
      {
        "rank correlation of a head's block and distance, beyond untrained"
        ' models': NUMBERS['distance_by_depth'](LARGE)
      },
    ),
    Claim(
      'some_look_far',
      'Some heads of the first block attend to most of the image, and other'
      ' heads only to near patches (4.5, D.7, Figure 7).',
      {
        'reach of the farthest head': NUMBERS['far_head'](LARGE),
        'nearness of the nearest head': NUMBERS['near_head'](LARGE),
      },
      'Far and near are measured from uniform attention to the nearest half of'
      ' the patches. The claim needs both, because an untrained head weighs all'
      ' patches alike and so looks far.',
    ),
    Claim(
      'near_is_similar',
      'Patches that are near each other have similar position embeddings (4.5,'
      ' Figure 7).',
      {
        'rank correlation of similarity and nearness': NUMBERS[
          'position_locality'
        ](studied)
      },
    ),
    Claim(
      'lines',
      'Two patches in the same row or column have more similar position'
      ' embeddings than two patches that share neither, but are as far from'
      ' each other (4.5, Figure 7).',
      {'excess of similarity': NUMBERS['position_lines'](studied)},
    ),
    Claim(
      'waves',
      'Position embeddings vary smoothly over the image, like waves of a large'
      ' wavelength: such waves describe them better than they describe shuffled'
      ' position embeddings (4.5, D.4, Figure 7).',
      {
        'share of slow waves beyond that of shuffled positions': NUMBERS[
          'position_waves'
        ](studied)
      },
      'The paper sees sinusoids on larger grids. Slow waves are here the lower'
      ' quarter of the two-dimensional cosine transform of the table.',
    ),
    Claim(
      'filters',
      'A few principal components explain more of the filters that embed'
      ' patches than of random filters: the filters are combinations of a few'
      ' patterns (4.5, Figure 7).',
      {
        'share of few components beyond that of random filters': NUMBERS[
          'filter_share'
        ](studied)
      },
      'Few are 28 components, as in the figure, or a tenth if fewer.',
    ),
  ]


ITEM = from_weights.item(
  'figure7',
  'Filters, position embeddings and attention distance',
  _panels,
  f'Attention distances are means over {IMAGES} images.',
  claims=_claims,
  miniature=[from_weights.MINI_POSITIONS],
)
