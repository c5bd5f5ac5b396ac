"""What helps transfer: weight decay, a new head, a higher resolution.

All are tested on the average accuracy over five tasks.
"""

import dataclasses

from vit_jax.configs import midi
from vit_jax.paper import claims, numbers
from vit_jax.paper.claims import AVERAGE5, Claim, Measure, tuned
from vit_jax.paper.item import Cells, grid, table
from vit_jax.paper.runs import Pretraining

_BASE = Pretraining('ViT-B/32', epochs=7)

# Fine-tuning at a higher resolution than pre-training (3.2). ------------------

# Scale -> the lower and the higher resolution. A smaller scale's usual images
# stand for those of pre-training and for 384 px; its larger ones for 512 px.
_SIZES = {'paper': (224, 384), 'mini': (384, 512), 'midi': (384, 512)}
PIXELS = {
  'paper': _SIZES['paper'],
  **{scale: (of.image_size, of.larger) for scale, of in midi.SMALLER.items()},
}


def _measures(scale: str, *tasks: str) -> list[Measure]:
  return [tuned(*tasks, resolution=size) for size in _SIZES[scale]]


def _resolution_cells(scale: str) -> Cells:
  rows = ('the size of pre-training', 'a higher resolution')
  return {
    (f'fine-tuned at {row}', task): measure(_BASE)
    for task in numbers.AVERAGE5
    for row, measure in zip(rows, _measures(scale, task), strict=True)
  }


def _resolution_claims(scale: str) -> list[Claim]:
  low, high = _measures(scale, *numbers.AVERAGE5)
  return [
    Claim(
      'higher_helps',
      'Fine-tuning the same weights at a higher resolution than that of'
      ' pre-training is better than at the same resolution, on average over'
      ' five tasks (3.2).',
      {'gain of the higher resolution': high(_BASE) - low(_BASE)},
    )
  ]


RESOLUTION = table(
  'resolution',
  'Fine-tuning at a higher resolution',
  _resolution_cells,
  heading='Accuracy after fine-tuning, in percent',
  claims=_resolution_claims,
  notes=lambda results: [
    'The paper cites others for this, and does not show the difference.',
    'The sizes are {} px, as in pre-training, and {} px.'.format(
      *PIXELS[results.scale]
    ),
  ],
  miniature=[
    'At scale mini, 3 x 3 patches become 4 x 4, which no longer fall on the'
    ' cells of the data set that stands for ImageNet.'
  ],
)


# A new linear head, or the hidden layer kept (B.1.1). -------------------------

_LABEL = 'hidden layer kept'
_HIDDEN = (('model.representation_size', -1),)  # -1: as wide as the model.
_KEPT = {'options': _HIDDEN, 'label': _LABEL}


def start(scale: str) -> Pretraining:
  """Returns the pre-training, which has a hidden layer at all scales."""
  if scale == 'paper':
    return _BASE
  # At smaller scales, no other pre-training has a hidden layer.
  return dataclasses.replace(_BASE, options=_HIDDEN, label='hidden layer')


def _head_cells(scale: str) -> Cells:
  return {
    (row, task): tuned(task, **how)(start(scale))
    for row, how in (('one linear layer', {}), (_LABEL, _KEPT))
    for task in numbers.AVERAGE5
  }


def _head_claims(scale: str) -> list[Claim]:
  kept = tuned(*numbers.AVERAGE5, **_KEPT)(start(scale))
  claim = Claim(
    'linear_is_better',
    'In fine-tuning, it is a little more robust to replace the whole head by'
    ' one linear layer, which begins with zeros, than to keep the hidden'
    ' layer and replace only the last one. We compare the average accuracy'
    ' over five tasks (B.1.1).',
    {'lead of the one linear layer': AVERAGE5(start(scale)) - kept},
  )
  return claims.not_in_miniature(claims.PLATEAU, [claim])


HEAD = table(
  'head',
  'The head of fine-tuning: one linear layer, or the hidden layer too',
  _head_cells,
  heading='Accuracy after fine-tuning, in percent',
  claims=_head_claims,
  notes=['The last layer begins with zeros in both cases.'],
)


# High weight decay in pre-training (4.1). -------------------------------------

_LOWER = {  # Table 3 has 0.1.
  f'{decay:g}': dataclasses.replace(
    _BASE,
    options=(('optimizer.weight_decay', decay),),
    label=f'WD {decay:g}',
  )
  for decay in (0.01, 0.0)
}
_CLAIM = Claim(
  'helps_transfer',
  'A high weight decay in pre-training helps transfer: with 0.1, the'
  ' average accuracy over five tasks is higher than with 0.01 and with 0'
  ' (4.1).',
  {
    f'lead of 0.1 over {decay}': AVERAGE5(_BASE) - AVERAGE5(start)
    for decay, start in _LOWER.items()
  },
)

WEIGHT_DECAY = table(
  'weight_decay',
  'Weight decay in pre-training, and transfer',
  grid(
    {
      f'weight decay {decay}': start
      for decay, start in {'0.1': _BASE, **_LOWER}.items()
    },
    {task: tuned(task) for task in numbers.AVERAGE5} | {'Average': AVERAGE5},
  ),
  heading='Accuracy after fine-tuning, in percent',
  claims=[_CLAIM],
  notes=['The paper says this of all its models. Here, it is ViT-B/32.'],
  miniature=['At scale mini, every weight decay is smaller by one factor.'],
)
