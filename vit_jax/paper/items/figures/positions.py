"""What models learn of positions: Figures 7 and 10, larger grids (4.5, D.4).

Figure 7 also has filters and attention distances.
"""

import functools

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.item import grid, table
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.items.figures.from_weights import IMAGES, LARGE
from vit_jax.paper.numbers import JFT
from vit_jax.paper.runs import Pretraining, structure

MINI_POSITIONS = (
  'In most models of scale mini, the random initial position embeddings are'
  ' larger than in the paper (configs/mini.py). Such models learn positions in'
  ' fewer steps, but after training their position embeddings still look like'
  ' noise. So the models whose position embeddings are shown here begin with'
  ' numbers as small as in the paper, and are trained for four times as many'
  ' steps as other miniatures. To save time, they are miniatures of ViT-B/16,'
  ' while the paper shows ViT-L. We decided all of this after other miniatures'
  ' had shown only noise (LOG.md).'
)


def small_positions(
  epochs: float, *, options: tuple = (), label: str = ''
) -> Pretraining:
  """Returns a miniature whose positions begin as small as in the paper.

  It needs more steps than the other miniatures to learn them, so it is smaller.
  """
  return Pretraining(
    'ViT-B/16',
    epochs=epochs,
    options=(('model.position_stddev', 0.02), *options),
    label=', '.join(filter(None, ('small initial positions', label))),
  )


# Structure -> the run whose filters and positions the figure shows.
STUDIED = {
  'paper': Pretraining('ViT-L/32', epochs=7),
  'mini': small_positions(28),
}


def _panels(scale: str) -> list[Panel]:
  studied = STUDIED[structure(scale)]
  return [
    Panel('filters', studied.model, studied),
    Panel('position_similarity', studied.model, studied),
    Panel('attention_distance', LARGE.model, LARGE, IMAGES),
  ]


def _figure7_claims(scale: str) -> list[Claim]:
  studied = STUDIED[structure(scale)]
  locality, lines, waves = (
    NUMBERS[f'position_{what}'](studied)
    for what in ('locality', 'lines', 'waves')
  )
  filters = NUMBERS['filter_share'](studied)
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
      {'rank correlation of similarity and nearness': locality},
    ),
    Claim(
      'lines',
      'Two patches in the same row or column have more similar position'
      ' embeddings than two patches that share neither, but are as far from'
      ' each other (4.5, Figure 7).',
      {'excess of similarity': lines},
    ),
    Claim(
      'waves',
      'Position embeddings vary smoothly over the image, like waves of a large'
      ' wavelength: such waves describe them better than they describe shuffled'
      ' position embeddings (4.5, D.4, Figure 7).',
      {'share of slow waves beyond that of shuffled positions': waves},
      'The paper sees sinusoids on larger grids. Slow waves are here the lower'
      ' quarter of the two-dimensional cosine transform of the table.',
    ),
    Claim(
      'filters',
      'A few principal components explain more of the filters that embed'
      ' patches than of random filters: the filters are combinations of a few'
      ' patterns (4.5, Figure 7).',
      {'share of few components beyond that of random filters': filters},
      'Few are 28 components, as in the figure, or a tenth if fewer.',
    ),
  ]


FIGURE7 = from_weights.item(
  'figure7',
  'Filters, position embeddings and attention distance',
  _panels,
  f'Attention distances are means over {IMAGES} images.',
  claims=_figure7_claims,
  miniature=[MINI_POSITIONS],
)


# Figure 10: position embeddings by hyper-parameters (D.4). --------------------


def _figure10_starts(scale: str) -> dict[str, Pretraining]:
  """Returns settings by the paper's numbers -> the run.

  They are half of the model's rate in Table 3 and a lower decay, Table 3's, and
  these with twice the epochs.
  """
  start, epochs = functools.partial(Pretraining, 'ViT-L/16', JFT), 7
  half, usual = '2e-4', '4e-4'
  if structure(scale) == 'mini':
    start, epochs, half, usual = (
      small_positions,
      28,
      '4e-4',
      '8e-4',
    )
  options = (('schedule.peak', float(half)), ('optimizer.weight_decay', 0.01))
  lower = start(epochs, options=options, label=f'LR {half}, WD 0.01')
  return {
    f'{epochs} epochs, LR {half}, WD 0.01': lower,
    f'{epochs} epochs, LR {usual}, WD 0.1': start(epochs),
    f'{2 * epochs} epochs, LR {usual}, WD 0.1': start(2 * epochs),
  }


_DIRECTION = 'The paper does not say in which direction; we chose it.'


def _figure10_claims(scale: str) -> list[Claim]:
  waves = NUMBERS['position_waves']
  lower, short, long = map(waves, _figure10_starts(scale).values())
  return [
    Claim(
      'rate_and_decay',
      'Position embeddings depend on the learning rate and the weight decay:'
      ' they have more structure if both are higher (D.4, Figure 10).',
      {
        'slow waves at the higher rate and decay, minus those at the lower': (
          short - lower
        )
      },
      _DIRECTION,
    ),
    Claim(
      'length',
      'Position embeddings depend on the length of the training: they have more'
      ' structure after a longer training (D.4, Figure 10).',
      {'slow waves after twice the epochs minus those before': long - short},
      _DIRECTION,
    ),
  ]


FIGURE10 = from_weights.item(
  'figure10',
  'Position embeddings by hyper-parameters',
  lambda scale: [
    Panel('position_similarity', title, start)
    for title, start in _figure10_starts(scale).items()
  ],
  'The same model, trained with other settings: the learning rate (LR), the'
  ' weight decay (WD), and the length of the training. In miniature, the titles'
  " have the paper's numbers, and the runs' own are in proportion to them.",
  claims=_figure10_claims,
  miniature=[MINI_POSITIONS],
)


# Sinusoids on larger grids (4.5, Figure 7). -----------------------------------

_WAVES = NUMBERS['position_waves']


def _grids(scale: str) -> dict[str, Pretraining]:
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


def _sinusoids_claims(scale: str) -> list[Claim]:
  small, large = map(_WAVES, _grids(scale).values())
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


SINUSOIDS = table(
  'sinusoids',
  'Structure of position embeddings by size of the grid',
  lambda scale: grid(
    _grids(scale),
    {'slow waves': _WAVES, 'nearness': NUMBERS['position_locality']},
  ),
  heading='Beyond chance',
  claims=_sinusoids_claims,
  notes=[
    'The share is beyond that of shuffled positions, as in Figure 7. Nearness'
    ' is the rank correlation of similarity and nearness.'
  ],
)
