"""Fine-tuning at a higher resolution than pre-training helps (3.2)."""

from vit_jax.configs import midi, mini
from vit_jax.paper import numbers
from vit_jax.paper.claims import Claim, Measure, tuned
from vit_jax.paper.item import Cells, of_means
from vit_jax.paper.runs import Pretraining, Results

_START = Pretraining('ViT-B/32', epochs=7)
# Scale -> the lower and the higher resolution. A smaller scale's usual images
# stand for those of pre-training and for 384 px; its larger ones for 512 px.
_SIZES = {'paper': (224, 384), 'mini': (384, 512), 'midi': (384, 512)}
_ROWS = (
  'fine-tuned at the size of pre-training',
  'fine-tuned at a higher resolution',
)
PIXELS = {
  'paper': _SIZES['paper'],
  'mini': (mini.MINI.image_size, mini.MINI.larger),
  'midi': (midi.MIDI.image_size, midi.MIDI.larger),
}


def _measures(scale: str, *tasks: str) -> list[Measure]:
  return [tuned(*tasks, resolution=size) for size in _SIZES[scale]]


def _cells(scale: str) -> Cells:
  return {
    (row, task): measure(_START)
    for task in numbers.AVERAGE5
    for row, measure in zip(_ROWS, _measures(scale, task), strict=True)
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


def _notes(results: Results) -> list[str]:
  low, high = PIXELS[results.scale]
  cells = (
    'In miniature, 3 x 3 patches become 4 x 4, which no longer fall on the'
    ' cells of the data set that stands for ImageNet.'
  )
  return [
    'The paper says that a higher resolution is often beneficial and cites'
    ' others for it. It does not show the difference.',
    f'The sizes are {low} px, as in pre-training, and {high} px.',
    *([cells] if results.scale == 'mini' else []),
  ]


ITEM = of_means(
  'resolution',
  'Fine-tuning at a higher resolution',
  _cells,
  heading='Accuracy after fine-tuning, in percent',
  claims=_claims,
  notes=_notes,
)
