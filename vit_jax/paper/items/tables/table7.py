"""Table 7: ResNets that were pre-trained with Adam and with SGD (D.1)."""

from vit_jax.paper.claims import AVERAGE5, Claim, tuned
from vit_jax.paper.item import printed
from vit_jax.paper.numbers import read_table
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
PAPER = read_table(
  'table7',
  'Accuracies by optimizer of the pre-training, 7 epochs of JFT-300M',
  [*STARTS],
  """
  ImageNet            77.54  78.24  84.97  84.37
  CIFAR-10            97.67  97.46  99.06  99.07
  CIFAR-100           86.07  85.17  92.05  91.06
  Oxford-IIIT Pets    91.11  91.00  95.37  94.79
  Oxford Flowers-102  94.26  92.06  98.62  99.32
  Average             89.33  88.79  94.01  93.72
  """,
)

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

ITEM = printed(
  PAPER,
  {
    (task, column): (AVERAGE5 if task == 'Average' else tuned(task))(start)
    for task in PAPER.rows
    for column, start in STARTS.items()
  },
  claims=[_CLAIM],
)
