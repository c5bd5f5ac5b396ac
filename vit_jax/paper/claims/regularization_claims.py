"""The paper's claims about regularization on ImageNet alone (1, B.1)."""

from vit_jax.configs import midi, mini, pretrain
from vit_jax.configs.sweeps import regularisation
from vit_jax.paper.claims import curve_claims
from vit_jax.paper.claims.claim import Claim, Contrast, total
from vit_jax.paper.claims.measures import Tuned
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, pretraining
from vit_jax.sweep.spec import Value

MODEL = 'ViT-B/16'
_DROPOUT, _DECAY = (regularisation.KEYS[k] for k in ('dropout', 'weight_decay'))
# Table 3's row for ImageNet. Its clipping of gradients is no regularization, so
# both settings have it.
STRONG: dict[str, Value] = {
  _DROPOUT: pretrain.IMAGENET.dropout_rate,
  _DECAY: pretrain.IMAGENET.weight_decay,
}
# The paper prints no weak settings; these are the weakest of a sweep.
WEAK: dict[str, Value] = {
  _DROPOUT: min(regularisation.AXES['dropout']),
  _DECAY: min(regularisation.AXES['weight_decay']),
}
# Of Table 6's ResNets, those whose compute for the same images is nearest to
# that of `MODEL`. A miniature's models have other proportions.
RESNETS = {'paper': 'BiT-R50x2', 'mini': 'BiT-R200x3', 'midi': 'BiT-R152x2'}
SMALLER = {'mini': mini.MINI, 'midi': midi.MIDI}
# A model can overfit only images that it sees often: here about 250 times (in
# midi, if there are 50,000 photographs), and 300 times at the paper's scale.
STEPS = {'mini': 800, 'midi': 1_800}


def epochs(scale: str) -> int | None:
  """Returns the epochs of all runs at a scale; None: as in Figure 3."""
  if scale == 'paper':
    return None
  return SMALLER[scale].datasets['imagenet2012'].epochs_of(STEPS[scale])


def strong(scale: str) -> Pretraining:
  """Returns the first run with the paper's regularization."""
  if scale == 'paper':
    return pretraining(MODEL, values.IMAGENET)
  return _vit(scale, STRONG, 'strong regularization')


def weak(scale: str) -> Pretraining:
  """Returns the first run with weak regularization."""
  return _vit(scale, WEAK, 'weak regularization')


def resnet(scale: str) -> Pretraining:
  """Returns the first run of the ResNet, which has its usual settings."""
  return Pretraining(RESNETS[scale], values.IMAGENET, epochs(scale))


def _vit(scale: str, options: dict[str, Value], label: str) -> Pretraining:
  return Pretraining(
    MODEL,
    values.IMAGENET,
    epochs(scale),
    options=tuple(options.items()),
    label=label,
  )


def regularization(scale: str) -> list[Claim]:
  """On ImageNet alone, ViTs need strong regularization (1, B.1)."""
  measure = Tuned((values.IMAGENET,))
  with_it, without, other = (
    total(measure, of(scale)) for of in (strong, weak, resnet)
  )
  return [
    Claim(
      'key',
      'Strong regularization is key to pre-training on ImageNet alone:'
      f' {MODEL} is better with strong than with weak regularization (B.1).',
      (Contrast('lead of strong regularization', with_it - without),),
    ),
    Claim(
      'resnet_ahead',
      'A ViT that is pre-trained on ImageNet alone, without strong'
      ' regularization, is behind a ResNet of comparable size (Section 1).',
      (
        Contrast(
          f'lead of {RESNETS[scale]} over {MODEL} with weak regularization',
          other - without,
        ),
      ),
      'The paper does not name the ResNet; here it is the one with the nearest'
      ' compute for the same images, 7 epochs of JFT-300M.'
      f' {curve_claims.computes(scale, RESNETS[scale], MODEL)}',
    ),
  ]
