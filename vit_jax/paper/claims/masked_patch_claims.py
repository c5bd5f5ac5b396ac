"""The paper's claims about masked patch prediction (4.6, B.1.2)."""

from vit_jax.paper.claims.claim import Claim, Contrast, total
from vit_jax.paper.claims.measures import Predicted, Tuned
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, pretraining

MODEL = 'ViT-B/16'
MASKED = Pretraining(MODEL, values.JFT, 14, objective='masked_patch')
SCRATCH = pretraining(MODEL, values.IMAGENET)
SUPERVISED = pretraining(MODEL, values.JFT)
# A wide margin is more than this multiple of the baseline's accuracy.
_MARGIN = 2.0


def masked_patch(scale: str) -> list[Claim]:
  """Masked patches can be predicted, and help a little (4.6)."""
  del scale
  tuned = Tuned((values.IMAGENET,))
  masked, scratch, supervised = (
    total(tuned, start) for start in (MASKED, SCRATCH, SUPERVISED)
  )
  return [
    Claim(
      'predictable',
      'The mean colours of masked patches can be predicted (B.1.2) by a wide'
      f' margin, which we set: more than {_MARGIN:g} times as many predictions'
      ' are right as with always the most frequent colour.',
      (Contrast('margin', total(Predicted(_MARGIN), MASKED)),),
    ),
    Claim(
      'beats_scratch',
      'Pre-training by masked patch prediction beats training from scratch'
      ' (4.6).',
      (Contrast('lead over training from scratch', masked - scratch),),
    ),
    Claim(
      'behind_labels',
      'Masked patch prediction stays behind pre-training with labels (4.6).',
      (Contrast('lead of pre-training with labels', supervised - masked),),
    ),
  ]
