"""Table 7: ResNets that were pre-trained with Adam and with SGD (D.1)."""

from vit_jax.paper.claims import AVERAGE5, Claim, tuned
from vit_jax.paper.item import of_paper
from vit_jax.paper.numbers import printed
from vit_jax.paper.runs import Pretraining

MODELS = ('BiT-R50x1', 'BiT-R152x2')
# Column -> its pre-training, 7 epochs of JFT-300M.
STARTS = {
  f'{model}, {optimizer}': Pretraining(
    model, epochs=7, optimizer=optimizer.lower()
  )
  for model in MODELS
  for optimizer in ('Adam', 'SGD')
}
PAPER = printed('table7')

_CLAIM = Claim(
  'adam',
  'ResNets that were pre-trained with Adam are better after fine-tuning'
  ' than those that were pre-trained with SGD, on average over five tasks'
  ' (D.1, Table 7).',
  {
    f'lead of Adam for {model}': AVERAGE5(STARTS[f'{model}, Adam'])
    - AVERAGE5(STARTS[f'{model}, SGD'])
    for model in MODELS
  },
)

ITEM = of_paper(
  PAPER,
  {
    (task, column): (AVERAGE5 if task == 'Average' else tuned(task))(start)
    for task in PAPER.rows
    for column, start in STARTS.items()
  },
  claims=[_CLAIM],
)
