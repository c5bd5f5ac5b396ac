"""Masked patch prediction, without labels (Section 4.6, B.1.2)."""

from vit_jax.paper import claims
from vit_jax.paper.claims import FIVE_SHOT, Claim, of_run, tuned
from vit_jax.paper.inside import Panel
from vit_jax.paper.item import grid, table
from vit_jax.paper.items import masked
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.numbers import IMAGENET

_NAME = 'masked_patch'
_MINI = (
  'In miniature, masked patch prediction is fine-tuned before it has learned to'
  ' tell places: 2.8% of answers are right, and 1.4% by chance. So a miniature'
  ' cannot show this, neither for the paper nor against it.'
)
# A wide margin is more than this multiple of the baseline's accuracy.
_MARGIN = 2.0
# Beyond a multiple of a constant's accuracy, on held-out images.
_PREDICTED = claims.difference(
  'right predictions in percent of the corrupted patches, minus'
  f' {_MARGIN:g} times those of the most frequent colour',
  of_run('accuracy', 'validation/accuracy'),
  of_run('accuracy of a constant', 'validation/baseline_accuracy'),
  _MARGIN,
)


def _claims(scale: str) -> list[Claim]:
  ours, scratch, _, supervised, short, on_imagenet = map(
    tuned(IMAGENET),
    (*masked.ROWS.values(), masked.SHORT[scale], masked.on_imagenet(scale)),
  )
  downsized, pixels, fewer = (
    FIVE_SHOT(masked.MASKED) - FIVE_SHOT(start)
    for start in (masked.DOWNSIZED, masked.PIXELS, masked.FEWER)
  )
  gain, half_of_it = ours - scratch, 0.5 * (ours + scratch)
  after = [
    Claim(
      'beats_scratch',
      'Pre-training by masked patch prediction beats training from scratch'
      ' (4.6).',
      {'lead over training from scratch': gain},
    ),
    Claim(
      'behind_labels',
      'Masked patch prediction stays behind pre-training with labels (4.6).',
      {'lead of pre-training with labels': supervised - ours},
    ),
    Claim(
      'best_target',
      'The best target of masked patch prediction is the mean colour of a'
      ' patch: the few-shot accuracy is higher than with a 4x4 copy of the'
      ' patch, or with all of its pixels (B.1.2).',
      {
        'lead of the mean colour over downsized patches': downsized,
        'lead of the mean colour over all pixels': pixels,
      },
    ),
    Claim(
      'half_masked',
      'Corrupting half of the patches gives a better few-shot accuracy than'
      ' corrupting 15% of them (B.1.2).',
      {'lead of 50%': fewer},
    ),
    Claim(
      'diminishing',
      'Masked patch prediction needs few steps: after a tenth of the steps, its'
      ' gain over training from scratch is more than half of its gain after all'
      ' steps (B.1.2: diminishing returns after 100k of a million steps).',
      {
        'gain of all steps': gain,
        'gain of a tenth of the steps, minus half of that of all': (
          short - half_of_it
        ),
      },
    ),
    Claim(
      'on_imagenet',
      'Masked patch prediction also works on the images of ImageNet: there, its'
      ' gain over training from scratch is more than half of its gain on'
      ' JFT-300M (B.1.2: similar gains).',
      {
        'gain on JFT-300M': gain,
        'gain on ImageNet, minus half of that on JFT-300M': (
          on_imagenet - half_of_it
        ),
      },
    ),
  ]
  return [
    Claim(
      'predictable',
      'The mean colours of masked patches can be predicted: the model is right'
      f' more than {_MARGIN:g} times as often as a guess that is always the'
      ' most frequent colour (B.1.2).',
      {'margin': _PREDICTED(masked.MASKED)},
      f'The factor {_MARGIN:g} is our choice.',
    ),
    *claims.not_in_miniature(_MINI, after),
  ]


ITEM = table(
  _NAME,
  'Pre-training by masked patch prediction',
  grid(masked.ROWS, {IMAGENET: tuned(IMAGENET)}),
  heading='ImageNet accuracy after fine-tuning',
  paper={(row, IMAGENET): value for row, value in masked.PAPER.items()},
  claims=_claims,
  more=lambda results, folder: from_weights.picture(
    _NAME,
    'Predicted colours',
    [Panel('masked_patches', masked.MODEL, masked.MASKED, 4)],
    'Held-out images in three forms: as the model sees them, with masked'
    ' patches grey; with corrupted patches in the colours that it predicts;'
    ' and unchanged.',
    results,
    folder,
  ),
  miniature=[
    'The row "From scratch" is pre-trained with labels on ImageNet alone, as in'
    ' Table 5. In miniature, only few images stand for ImageNet. With rendered'
    ' scenes, these are 200 images.'
  ],
)
