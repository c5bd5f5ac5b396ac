"""Beyond the paper: answers to shifted images, by the number of images seen.

The paper says that translation equivariance is built into ResNets, and hardly
into ViTs (1, 3.1), but it does not measure it. That trained Transformers can
have as much of it as convolutional networks is the finding of arXiv:2210.02984.
"""

import pathlib
from collections.abc import Iterator

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.item import grid, table
from vit_jax.paper.items.figures import figure4
from vit_jax.paper.report import Picture, Table
from vit_jax.paper.runs import Results

_NAME = 'translation'
_TITLE = 'Answers to shifted images, by number of pre-training images'
_EIGHTH, _QUARTER = 'changed by 1/8 patch', 'changed by 1/4 patch'
_COLUMNS = {
  '5-shot accuracy': NUMBERS['shift_accuracy'],
  'lost by 1/4 patch': NUMBERS['shift_loss'],
  _EIGHTH: NUMBERS['shift_eighth'],
  _QUARTER: NUMBERS['shift_quarter'],
}
_NOTES = (
  'The claims are from the literature. arXiv:2210.02984 finds that Transformers'
  ' can learn translation equivariance. We count changed answers as'
  ' arXiv:1904.11486 does.',
  'The models are those of Figure 4, with the weights of the best step, if the'
  ' run has kept them, and otherwise of the last step. The answers are those of'
  " a 5-shot classifier of the model's features, fitted to five unshifted"
  ' images of each class, for up to 1,000 test images. Each number is the mean'
  ' over shifts up, down, left and right. A shift leaves an empty strip at one'
  ' border, which the mirrored image fills.',
  'A model that knows little changes many answers, so the table also shows the'
  ' accuracy. Shifts are given in patches of 32 px, for images of 224 px, also'
  ' for models with other patches.',
)
_SHIFT = 'A shift is by a quarter of a patch of 32 px.'


def _claims(scale: str) -> list[Claim]:
  vit, resnet = figure4.rivals(scale)
  few, every, resnet_few, resnet_every = map(
    _COLUMNS[_QUARTER], figure4.few_and_all(scale).values()
  )
  return [
    Claim(
      'resnet_steadier_on_few',
      'Beyond the paper: after pre-training on 9M images, a shift changes fewer'
      f' answers of {resnet} than of {vit}.',
      {f'changes of {vit} minus those of {resnet}': few - resnet_few},
      f'{_SHIFT} The paper names this bias of ResNets (3.1).',
    ),
    Claim(
      'vit_learns_it',
      f'Beyond the paper: a shift changes fewer answers of {vit} after'
      ' pre-training on all images than after pre-training on 9M images'
      ' (arXiv:2210.02984).',
      {f'changes of {vit} after 9M images minus those after all': few - every},
      _SHIFT,
    ),
    Claim(
      'gap_shrinks',
      f'Beyond the paper: with more pre-training images, {vit} comes closer to'
      f' {resnet}. The share of answers that change is larger for {vit}. This'
      ' difference is smaller after all images than after 9M images.',
      {
        f'changes of {vit} beyond those of {resnet}: after 9M images minus'
        ' after all': (few - resnet_few) - (every - resnet_every)
      },
      _SHIFT,
    ),
  ]


def _drawn(
  results: Results, pictures: pathlib.Path, shown: Table
) -> Iterator[Picture]:
  marks = plots.marks_of(
    (row, shift, shown.cells[row, column].ours)
    for row in shown.rows
    for shift, column in ((1 / 8, _EIGHTH), (1 / 4, _QUARTER))
  )
  figure = plots.lines(
    marks,
    x_label='Shift, in patches of 32 px at 224 px',
    y_label='Changed 5-shot answers (%)',
  )
  caption = (
    'A convolution treats all places of an image alike. A ViT has to learn this'
    ' from data.'
  )
  yield plots.save(_NAME, _TITLE, caption, figure, marks, pictures, results)


ITEM = table(
  _NAME,
  _TITLE,
  lambda scale: grid(figure4.few_and_all(scale), _COLUMNS),
  heading='Percent of test images',
  claims=_claims,
  notes=_NOTES,
  miniature=[
    'In miniature, the data set that stands for ImageNet asks where the shapes'
    ' are, and a shift moves the shapes. So this section instead uses'
    ' shapes:shape+colour, unless you use your own images.'
  ],
  more=_drawn,
  beyond=True,
)
