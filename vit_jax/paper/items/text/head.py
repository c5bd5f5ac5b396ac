"""A new linear head against keeping the hidden layer in fine-tuning (B.1.1)."""

from vit_jax.paper import claims, numbers
from vit_jax.paper.claims import AVERAGE5, Claim, tuned
from vit_jax.paper.item import Cells, table
from vit_jax.paper.runs import Pretraining

_LABEL = 'hidden layer kept'
_HIDDEN = (('model.representation_size', -1),)  # -1: as wide as the model.
_KEPT = {'options': _HIDDEN, 'label': _LABEL}


def start(scale: str) -> Pretraining:
  """Returns the pre-training, which has a hidden layer at all scales."""
  if scale == 'paper':
    return Pretraining('ViT-B/32', epochs=7)
  # At smaller scales, no other pre-training has a hidden layer.
  return Pretraining(
    'ViT-B/32', epochs=7, options=_HIDDEN, label='hidden layer'
  )


def _cells(scale: str) -> Cells:
  return {
    (row, task): tuned(task, **how)(start(scale))
    for row, how in (('one linear layer', {}), (_LABEL, _KEPT))
    for task in numbers.AVERAGE5
  }


def _claims(scale: str) -> list[Claim]:
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


ITEM = table(
  'head',
  'The head of fine-tuning: one linear layer, or the hidden layer too',
  _cells,
  heading='Accuracy after fine-tuning, in percent',
  claims=_claims,
  notes=['The last layer begins with zeros in both cases.'],
)
