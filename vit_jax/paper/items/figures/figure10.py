"""Figure 10: position embeddings by hyper-parameters (D.4)."""

from typing import Any

from vit_jax import config as config_lib
from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS, Panel
from vit_jax.paper.items.figures.from_weights import (
  LARGE,
  item,
  small_positions,
)
from vit_jax.paper.runs import Pretraining, Results, structure


def _lower(rate: str) -> dict[str, Any]:
  """Returns options and label for a lower rate, and a tenth of the decay."""
  options = (('schedule.peak', float(rate)), ('optimizer.weight_decay', 0.01))
  return {'options': options, 'label': f'LR {rate}, WD 0.01'}


# Structure -> the runs: at a lower rate and decay, at Table 3's, and for twice
# as long.
STARTS = {
  'paper': (
    # Half of the rate of ViT-L/16.
    Pretraining('ViT-L/16', epochs=7, **_lower('2e-4')),
    Pretraining('ViT-L/16', epochs=7),
    LARGE,
  ),
  'mini': (
    # Half of the rate of ViT-B/16.
    small_positions(28, **_lower('4e-4')),
    small_positions(28),
    small_positions(56),
  ),
}
_DIRECTION = 'The paper does not say in which direction; we chose it.'


def _claims(scale: str) -> list[Claim]:
  lower, short, long = map(NUMBERS['position_waves'], STARTS[structure(scale)])
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


def _settings(start: Pretraining, results: Results) -> str:
  """Returns a run's own length, rate and decay; its name if unfinished."""
  folder = results.folder(start)
  config = folder and config_lib.load(folder)
  if not config:
    return start.name
  length = f'{start.epochs:g} epochs'
  if not results.comparable:  # The epochs are only the paper's.
    length = f'{config["total_steps"]:,} steps'
  rate, decay = config['schedule']['peak'], config['optimizer']['weight_decay']
  return f'{length}, LR {rate:g}, WD {decay:g}'


ITEM = item(
  'figure10',
  'Position embeddings by hyper-parameters',
  lambda results: [
    Panel('position_similarity', _settings(start, results), start)
    for start in STARTS[results.structure]
  ],
  lambda structure: STARTS[structure],
  'All panels show the same model, trained with other settings. The title of'
  ' a panel has the length of the training, the learning rate (LR) and the'
  " weight decay (WD). The paper's finding: the pattern of the position"
  ' embeddings depends on these settings.',
  _claims,
  positions=True,
)
