"""The pre-trainings by masked patch prediction, and their rivals (4.6)."""

from typing import Any

from vit_jax.configs import midi
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT, Value
from vit_jax.paper.runs import Pretraining, pretraining

MODEL = 'ViT-B/16'


def _masked(
  data: str = JFT, epochs: float | None = 14, **options: Any
) -> Pretraining:
  return Pretraining(MODEL, data, epochs, objective='masked_patch', **options)


MASKED = _masked()
# Row -> its pre-training.
ROWS = {
  'Masked patch prediction': MASKED,
  'From scratch': pretraining(MODEL, IMAGENET),
  'Supervised, ImageNet-21k': pretraining(MODEL, IMAGENET21K),
  'Supervised, JFT-300M': pretraining(MODEL, JFT),
}
# The paper's accuracy on ImageNet in percent.
PAPER = {
  row: table5.PAPER[f'{start.data}: ImageNet', MODEL].noted('Table 5')
  for row, start in ROWS.items()
} | {'Masked patch prediction': Value(79.9, None, 'Section 4.6', '79.9')}
DOWNSIZED = _masked(
  options=(('loss.target', 'downsized'),), label='4x4 colours'
)
PIXELS = _masked(options=(('loss.target', 'pixels'),), label='all pixels')
FEWER = _masked(options=(('loss.fraction', 0.15),), label='15% masked')
# At the paper's scale, the steps of masked patch prediction are given, not its
# epochs. A tenth of them:
SHORT = {
  'paper': _masked(options=(('total_steps', 100_000),), label='100k steps'),
  **dict.fromkeys(('mini', 'midi'), _masked(epochs=1.4)),
}


def on_imagenet(scale: str) -> Pretraining:
  """Returns a pre-training of as many steps on ImageNet's images."""
  if scale == 'paper':
    return _masked(IMAGENET, None)
  datasets = midi.SMALLER[scale].datasets
  jft = datasets['jft300m']
  steps = 14 * jft.steps / jft.epochs
  return _masked(IMAGENET, datasets['imagenet2012'].epochs_of(steps))
