"""Figure 10: position embeddings by hyper-parameters (D.4)."""

from typing import Any

from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.items.figures.from_weights import LARGE, small_positions
from vit_jax.paper.runs import Pretraining, structure


def _lower(rate: str) -> dict[str, Any]:
  """Returns options and label for a lower rate, and a tenth of the decay."""
  options = (('schedule.peak', float(rate)), ('optimizer.weight_decay', 0.01))
  return {'options': options, 'label': f'LR {rate}, WD 0.01'}


# Structure -> settings by the paper's numbers -> the run: at half of the
# model's rate in Table 3 and a lower decay, at Table 3's, and twice as long.
STARTS = {
  'paper': {
    '7 epochs, LR 2e-4, WD 0.01': Pretraining(
      'ViT-L/16', epochs=7, **_lower('2e-4')
    ),
    '7 epochs, LR 4e-4, WD 0.1': Pretraining('ViT-L/16', epochs=7),
    '14 epochs, LR 4e-4, WD 0.1': LARGE,
  },
  'mini': {
    '28 epochs, LR 4e-4, WD 0.01': small_positions(28, **_lower('4e-4')),
    '28 epochs, LR 8e-4, WD 0.1': small_positions(28),
    '56 epochs, LR 8e-4, WD 0.1': small_positions(56),
  },
}
_DIRECTION = 'The paper does not say in which direction; we chose it.'


def _claims(scale: str) -> list[Claim]:
  starts = STARTS[structure(scale)].values()
  lower, short, long = map(NUMBERS['position_waves'], starts)
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
    for title, start in STARTS[structure(scale)].items()
  ],
  'The same model, trained with other settings: the learning rate (LR), the'
  ' weight decay (WD), and the length of the training. In miniature, the titles'
  " have the paper's numbers, and the runs' own are in proportion to them.",
  claims=_claims,
  miniature=[from_weights.MINI_POSITIONS],
)
