"""Masked patch prediction, without labels (Section 4.6, B.1.2).

`sizes` shows the effects whose sizes the paper prints here. Figure 5 has the
other one: 2 to 4 times the compute.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from vit_jax.configs import midi
from vit_jax.paper import answers, claims
from vit_jax.paper.claims import FIVE_SHOT, Claim, of_run, tuned
from vit_jax.paper.inside import Panel
from vit_jax.paper.item import Item, grid, nodes_of, table
from vit_jax.paper.items.figures import from_weights
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT, Value
from vit_jax.paper.report import Cell, Number, Table
from vit_jax.paper.runs import Pretraining, Results, pretraining

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


# Pre-training by masked patch prediction. -------------------------------------

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
  ours, scratch, _, supervised, short, elsewhere = map(
    tuned(IMAGENET),
    (*ROWS.values(), SHORT[scale], on_imagenet(scale)),
  )
  downsized, pixels, fewer = (
    FIVE_SHOT(MASKED) - FIVE_SHOT(start) for start in (DOWNSIZED, PIXELS, FEWER)
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
          elsewhere - half_of_it
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
      {'margin': _PREDICTED(MASKED)},
      f'The factor {_MARGIN:g} is our choice.',
    ),
    *claims.not_in_miniature(_MINI, after),
  ]


MASKED_PATCH = table(
  _NAME,
  'Pre-training by masked patch prediction',
  grid(ROWS, {IMAGENET: tuned(IMAGENET)}),
  heading='ImageNet accuracy after fine-tuning',
  paper={(row, IMAGENET): value for row, value in PAPER.items()},
  claims=_claims,
  more=lambda results, folder: from_weights.picture(
    _NAME,
    'Predicted colours',
    [Panel('masked_patches', MODEL, MASKED, 4)],
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


# Sizes of effects, beside ours. -----------------------------------------------

_OF_MASKED, _SCRATCH, _, _SUPERVISED = map(tuned(IMAGENET), ROWS.values())
_GAIN, _DEFICIT = _OF_MASKED - _SCRATCH, _SUPERVISED - _OF_MASKED
# Row -> the difference in points of ImageNet accuracy, and the paper's.
_SIZES = {
  'masked patches minus from scratch': (_GAIN, 2),
  'supervised on JFT-300M minus masked patches': (_DEFICIT, 4),
}
_CLAIM = Claim(
  'deficit_is_larger',
  'Pre-training by masked patch prediction is closer to training from'
  ' scratch than to pre-training with labels: it gains 2 points on the one,'
  ' and is 4 points behind the other (4.6).',
  {'deficit minus gain': _DEFICIT - _GAIN},
)


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Table]:
  cells, values = {}, answers.lookup(results)
  for row, (size, printed) in _SIZES.items():
    found = answers.test(size, values)
    paper = Value(printed, note='Section 4.6', printed=f'{printed}%')
    cells[row, 'points'] = Cell(
      found and Number((found.estimate,), (row,)), paper
    )
    ends = (found and found.interval) or (None, None)
    for column, end in zip(('from', 'to'), ends, strict=True):
      ours = None if end is None else Number((end,), (row,))
      cells[row, column] = Cell(ours, expected=False)
  heading = 'Points of accuracy on ImageNet, and their 95% interval'
  yield Table(heading, [*_SIZES], ['points', 'from', 'to'], cells)


SIZES = Item(
  'sizes',
  'Sizes of effects that the paper prints',
  _blocks,
  lambda scale: nodes_of((_OF_MASKED, _SCRATCH, _SUPERVISED)),
  claims.not_in_miniature(claims.PLATEAU, [_CLAIM]),
)
