"""The paper's claims about masked patch prediction (4.6, B.1.2)."""

from vit_jax.configs import midi, mini
from vit_jax.paper.claims.claim import Claim, Contrast, total
from vit_jax.paper.claims.measures import FewShot, Predicted, Tuned
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, pretraining
from vit_jax.sweep.spec import Value

MODEL = 'ViT-B/16'


def _epochs_of_imagenet(smaller: mini.Scale) -> int:
  """Returns the epochs of a miniature's ImageNet with the steps of `MASKED`."""
  jft, imagenet = (
    smaller.datasets[name] for name in ('jft300m', 'imagenet2012')
  )
  return imagenet.epochs_of(14 * jft.steps / jft.epochs)


def _masked(
  data: str = values.JFT,
  epochs: float | None = 14,
  label: str = '',
  **options: Value,
) -> Pretraining:
  return Pretraining(
    MODEL,
    data,
    epochs,
    options=tuple((key.replace('__', '.'), v) for key, v in options.items()),
    label=label,
    objective='masked_patch',
  )


MASKED = _masked()
_TARGETS = {
  'downsized patches': _masked(label='4x4 colours', loss__target='downsized'),
  'all pixels': _masked(label='all pixels', loss__target='pixels'),
}
_FEWER = _masked(label='15% masked', loss__fraction=0.15)
# At the paper's scale, the steps of masked patch prediction are given, not its
# epochs. A tenth of them:
_SHORT = {
  'paper': _masked(label='100k steps', total_steps=100_000),
  **dict.fromkeys(('mini', 'midi'), _masked(epochs=1.4)),
}
# The same number of steps, on ImageNet's images.
_ON_IMAGENET = {
  'paper': _masked(values.IMAGENET, None),
  **{
    scale: _masked(values.IMAGENET, _epochs_of_imagenet(smaller))
    for scale, smaller in (('mini', mini.MINI), ('midi', midi.MIDI))
  },
}
SCRATCH = pretraining(MODEL, values.IMAGENET)
SUPERVISED = pretraining(MODEL, values.JFT)
# A wide margin is more than this multiple of the baseline's accuracy.
_MARGIN = 2.0


def masked_patch(scale: str) -> list[Claim]:
  """Masked patches can be predicted, and help a little (4.6)."""
  tuned, shot = Tuned((values.IMAGENET,)), FewShot()
  masked, scratch, supervised, short, on_imagenet = (
    total(tuned, start)
    for start in (
      *(MASKED, SCRATCH, SUPERVISED),
      *(_SHORT[scale], _ON_IMAGENET[scale]),
    )
  )
  return [
    Claim(
      'predictable',
      'The mean colours of masked patches can be predicted: the model is right'
      f' more than {_MARGIN:g} times as often as a guess that is always the'
      ' most frequent colour (B.1.2).',
      (Contrast('margin', total(Predicted(_MARGIN), MASKED)),),
      f'The factor {_MARGIN:g} is our choice.',
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
    Claim(
      'best_target',
      'The best target of masked patch prediction is the mean colour of a'
      ' patch: the few-shot accuracy is higher than with a 4x4 copy of the'
      ' patch, or with all of its pixels (B.1.2).',
      tuple(
        Contrast(
          f'lead of the mean colour over {name}',
          total(shot, MASKED) - total(shot, start),
        )
        for name, start in _TARGETS.items()
      ),
    ),
    Claim(
      'half_masked',
      'Corrupting half of the patches gives a better few-shot accuracy than'
      ' corrupting 15% of them (B.1.2).',
      (Contrast('lead of 50%', total(shot, MASKED) - total(shot, _FEWER)),),
    ),
    Claim(
      'diminishing',
      'Masked patch prediction needs few steps: after a tenth of the steps, its'
      ' gain over training from scratch is more than half of its gain after all'
      ' steps (B.1.2: diminishing returns after 100k of a million steps).',
      (
        Contrast('gain of all steps', masked - scratch),
        Contrast(
          'gain of a tenth of the steps, minus half of that of all',
          short - 0.5 * (masked + scratch),
        ),
      ),
    ),
    Claim(
      'on_imagenet',
      'Masked patch prediction also works on the images of ImageNet: there, its'
      ' gain over training from scratch is more than half of its gain on'
      ' JFT-300M (B.1.2: similar gains).',
      (
        Contrast('gain on JFT-300M', masked - scratch),
        Contrast(
          'gain on ImageNet, minus half of that on JFT-300M',
          on_imagenet - 0.5 * (masked + scratch),
        ),
      ),
    ),
  ]
