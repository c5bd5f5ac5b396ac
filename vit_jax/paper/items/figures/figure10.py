"""Figure 10: position embeddings by hyper-parameters (D.4)."""

import functools

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.items.figures.from_weights import small_positions
from vit_jax.paper.numbers import JFT
from vit_jax.paper.runs import Pretraining, structure


def _starts(scale: str) -> dict[str, Pretraining]:
  """Returns settings by the paper's numbers -> the run.

  They are half of the model's rate in Table 3 and a lower decay, Table 3's, and
  these with twice the epochs.
  """
  start, epochs = functools.partial(Pretraining, 'ViT-L/16', JFT), 7
  half, usual = '2e-4', '4e-4'
  if structure(scale) == 'mini':
    start, epochs, half, usual = small_positions, 28, '4e-4', '8e-4'
  options = (('schedule.peak', float(half)), ('optimizer.weight_decay', 0.01))
  lower = start(epochs, options=options, label=f'LR {half}, WD 0.01')
  return {
    f'{epochs} epochs, LR {half}, WD 0.01': lower,
    f'{epochs} epochs, LR {usual}, WD 0.1': start(epochs),
    f'{2 * epochs} epochs, LR {usual}, WD 0.1': start(2 * epochs),
  }


_DIRECTION = 'The paper does not say in which direction; we chose it.'


def _claims(scale: str) -> list[Claim]:
  waves = NUMBERS['position_waves']
  lower, short, long = map(waves, _starts(scale).values())
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


ITEM = from_weights.item(
  'figure10',
  'Position embeddings by hyper-parameters',
  lambda scale: [
    Panel('position_similarity', title, start)
    for title, start in _starts(scale).items()
  ],
  'The same model, trained with other settings: the learning rate (LR), the'
  ' weight decay (WD), and the length of the training. In miniature, the titles'
  " have the paper's numbers, and the runs' own are in proportion to them.",
  claims=_claims,
  miniature=[from_weights.MINI_POSITIONS],
)
