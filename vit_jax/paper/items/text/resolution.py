"""Fine-tuning at a higher resolution than pre-training helps (3.2)."""

from vit_jax.configs import midi
from vit_jax.paper import numbers
from vit_jax.paper.claims import Claim, Measure, tuned
from vit_jax.paper.item import Cells, table
from vit_jax.paper.runs import Pretraining

_START = Pretraining('ViT-B/32', epochs=7)
# Scale -> the lower and the higher resolution. A smaller scale's usual images
# stand for those of pre-training and for 384 px; its larger ones for 512 px.
_SIZES = {'paper': (224, 384), 'mini': (384, 512), 'midi': (384, 512)}
PIXELS = {
  'paper': _SIZES['paper'],
  **{scale: (of.image_size, of.larger) for scale, of in midi.SMALLER.items()},
}


def _measures(scale: str, *tasks: str) -> list[Measure]:
  return [tuned(*tasks, resolution=size) for size in _SIZES[scale]]


def _cells(scale: str) -> Cells:
  rows = ('the size of pre-training', 'a higher resolution')
  return {
    (f'fine-tuned at {row}', task): measure(_START)
    for task in numbers.AVERAGE5
    for row, measure in zip(rows, _measures(scale, task), strict=True)
  }


def _claims(scale: str) -> list[Claim]:
  low, high = _measures(scale, *numbers.AVERAGE5)
  return [
    Claim(
      'higher_helps',
      'Fine-tuning the same weights at a higher resolution than that of'
      ' pre-training is better than at the same resolution, on average over'
      ' five tasks (3.2).',
      {'gain of the higher resolution': high(_START) - low(_START)},
    )
  ]


ITEM = table(
  'resolution',
  'Fine-tuning at a higher resolution',
  _cells,
  heading='Accuracy after fine-tuning, in percent',
  claims=_claims,
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
