"""Regularization tuned on the smaller pre-training sets (4.3, Figure 3)."""

import itertools

from vit_jax.configs.sweeps import regularisation
from vit_jax.paper.claims import of_run, tuned
from vit_jax.paper.item import of_means
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K
from vit_jax.paper.runs import Pretraining, Results

_MODEL = 'ViT-B/32'
_HELD_OUT = of_run(
  'accuracy on held-out images in percent', 'validation/accuracy'
)
# The corners of configs/sweeps/regularisation.py's axes, and Table 3's decay.
_AXES = {
  'weight_decay': (0.03, 0.3),
  'dropout': (0.0, 0.1),
  'smoothing': (0.0, 1e-4),
}


def _start(data: str, chosen: dict[str, float]) -> Pretraining:
  label = ', '.join(f'{name} {value:g}' for name, value in chosen.items())
  options = {regularisation.KEYS[k]: v for k, v in chosen.items()}
  return Pretraining(
    _MODEL, data, options=tuple(options.items()), label=label.replace('_', ' ')
  )


_STARTS = [
  _start(data, dict(zip(_AXES, values, strict=True)))
  for data in (IMAGENET, IMAGENET21K)
  for values in itertools.product(*_AXES.values())
]


def _notes(results: Results) -> list[str]:
  found = [
    'The paper tunes weight decay, dropout and label smoothing on its smaller'
    ' pre-training sets. It prints neither the values that it tried nor the'
    f' accuracies. Here, {_MODEL} is pre-trained with all combinations of two'
    ' values each. The first column has the accuracy on held-out images of the'
    ' pre-training set, by which to choose.'
  ]
  if results.comparable:
    found.append(
      'On ImageNet, these are the images on which the second column is measured'
      ' too, so that this choice flatters it. The sweep'
      ' configs/sweeps/regularisation.py holds training images out instead.'
    )
  for data in (IMAGENET, IMAGENET21K):
    known = {
      start: number.mean
      for start in _STARTS
      if start.data == data and (number := _HELD_OUT(start).number(results))
    }
    if known:
      best = max(known, key=known.get)
      found.append(f'On {data}, this chooses {best.label}.')
  return found


ITEM = of_means(
  'tuned_regularization',
  'Regularization tuned on ImageNet and on ImageNet-21k',
  {
    (f'{start.data}: {start.label}', column): measure(start)
    for start in _STARTS
    for column, measure in {
      'held out': _HELD_OUT,
      IMAGENET: tuned(IMAGENET),
    }.items()
  },
  heading='Accuracy in percent',
  notes=_notes,
)
