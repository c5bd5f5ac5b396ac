"""The paper's claims about Figures 7, 10 and 11: what models look like inside.

Each pre-training gives a number, so the answers hold for further pre-trainings
and not only for the heads of one.
"""

from typing import Any

from vit_jax.paper.claims.claim import Claim, Contrast, Sum, total
from vit_jax.paper.claims.measures import Inside
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, structure

# Attention is studied in these.
LARGE = Pretraining('ViT-L/16', values.JFT, 14)
HYBRID = Pretraining('R50+ViT-L/16', values.JFT, 14)


def _small_positions(
  epochs: float, *, options: tuple = (), label: str = ''
) -> Pretraining:
  """Returns a miniature whose positions begin as small as in the paper.

  It needs more steps than the other miniatures to learn them, so it is smaller.
  """
  return Pretraining(
    'ViT-B/16',
    values.JFT,
    epochs,
    options=(('model.position_stddev', 0.02), *options),
    label=', '.join(filter(None, ('small initial positions', label))),
  )


def _lower(rate: str) -> dict[str, Any]:
  """Returns options and label for a lower rate, and a tenth of the decay."""
  options = (('schedule.peak', float(rate)), ('optimizer.weight_decay', 0.01))
  return {'options': options, 'label': f'LR {rate}, WD 0.01'}


# Scale -> the run whose filters and positions Figure 7 shows.
STUDIED = {
  'paper': Pretraining('ViT-L/32', values.JFT, 7),
  'mini': _small_positions(28),
}
# Scale -> the runs of Figure 10: at a lower rate and decay, at Table 3's, and
# for twice as long.
FIGURE_10 = {
  'paper': (
    # Half of the rate of ViT-L/16.
    Pretraining('ViT-L/16', values.JFT, 7, **_lower('2e-4')),
    Pretraining('ViT-L/16', values.JFT, 7),
    LARGE,
  ),
  'mini': (
    # Half of the rate of ViT-B/16.
    _small_positions(28, **_lower('4e-4')),
    _small_positions(28),
    _small_positions(56),
  ),
}


def _of(kind: str, start: Pretraining) -> Sum:
  return total(Inside(kind), start)


def figure7(scale: str) -> list[Claim]:
  """What attention, positions and filters look like (4.5)."""
  studied = STUDIED[structure(scale)]
  return [
    Claim(
      'distance_grows',
      'In deeper blocks, attention reaches farther over the image: the'
      ' attention distance grows with the depth of the block (4.5, Figure 7).',
      (
        Contrast(
          "rank correlation of a head's block and distance, beyond untrained"
          ' models',
          _of('distance_by_depth', LARGE),
        ),
      ),
    ),
    Claim(
      'some_look_far',
      'Some heads of the first block attend to most of the image, and other'
      ' heads only to near patches (4.5, D.7, Figure 7).',
      (
        Contrast('reach of the farthest head', _of('far_head', LARGE)),
        Contrast('nearness of the nearest head', _of('near_head', LARGE)),
      ),
      'Far and near are measured from uniform attention to the nearest half of'
      ' the patches. The claim needs both, because an untrained head weighs all'
      ' patches alike and so looks far.',
    ),
    Claim(
      'near_is_similar',
      'Patches that are near each other have similar position embeddings (4.5,'
      ' Figure 7).',
      (
        Contrast(
          'rank correlation of similarity and nearness',
          _of('position_locality', studied),
        ),
      ),
    ),
    Claim(
      'lines',
      'Two patches in the same row or column have more similar position'
      ' embeddings than two patches that share neither, but are as far from'
      ' each other (4.5, Figure 7).',
      (Contrast('excess of similarity', _of('position_lines', studied)),),
    ),
    Claim(
      'waves',
      'Position embeddings vary smoothly over the image, like waves of a large'
      ' wavelength: such waves describe them better than they describe shuffled'
      ' position embeddings (4.5, D.4, Figure 7).',
      (
        Contrast(
          'share of slow waves beyond that of shuffled positions',
          _of('position_waves', studied),
        ),
      ),
      'The paper sees sinusoids on larger grids. Slow waves are here the lower'
      ' quarter of the two-dimensional cosine transform of the table.',
    ),
    Claim(
      'filters',
      'A few principal components explain more of the filters that embed'
      ' patches than of random filters: the filters are combinations of a few'
      ' patterns (4.5, Figure 7).',
      (
        Contrast(
          'share of few components beyond that of random filters',
          _of('filter_share', studied),
        ),
      ),
      'Few are 28 components, as in the figure, or a tenth if fewer.',
    ),
  ]


def figure10(scale: str) -> list[Claim]:
  """Position embeddings depend on the hyper-parameters (D.4)."""
  lower, short, long = FIGURE_10[structure(scale)]
  return [
    Claim(
      'rate_and_decay',
      'Position embeddings depend on the learning rate and the weight decay:'
      ' they have more structure if both are higher (D.4, Figure 10).',
      (
        Contrast(
          'slow waves at the higher rate and decay, minus those at the lower',
          _of('position_waves', short) - _of('position_waves', lower),
        ),
      ),
      'The paper does not say in which direction; we chose it.',
    ),
    Claim(
      'length',
      'Position embeddings depend on the length of the training: they have more'
      ' structure after a longer training (D.4, Figure 10).',
      (
        Contrast(
          'slow waves after twice the epochs minus those before',
          _of('position_waves', long) - _of('position_waves', short),
        ),
      ),
      'The paper does not say in which direction; we chose it.',
    ),
  ]


def figure11(scale: str) -> list[Claim]:
  """Early blocks of a hybrid attend less locally than those of a ViT (D.7)."""
  del scale
  return [
    Claim(
      'hybrid_looks_farther',
      'Early blocks of a hybrid attend less locally than those of a ViT (4.5,'
      ' D.7, Figure 11).',
      (
        Contrast(
          'mean distance in the first quarter of the blocks: hybrid minus ViT',
          _of('early_distance', HYBRID) - _of('early_distance', LARGE),
        ),
      ),
    )
  ]
