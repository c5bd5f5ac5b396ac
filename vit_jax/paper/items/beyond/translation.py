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
from vit_jax.paper.item import Cells, of_means
from vit_jax.paper.items.figures import figure4
from vit_jax.paper.report import Picture, Table
from vit_jax.paper.runs import Results

_NAME = 'translation'
_TITLE = 'Answers to shifted images, by number of pre-training images'
# Column -> kind of number from weights.
_COLUMNS = {
  '5-shot accuracy': 'shift_accuracy',
  'lost by 1/4 patch': 'shift_loss',
  'changed by 1/8 patch': 'shift_eighth',
  'changed by 1/4 patch': 'shift_quarter',
}
# Shift in patches -> column.
_CURVE = {1 / 8: 'changed by 1/8 patch', 1 / 4: 'changed by 1/4 patch'}
_CAPTION = (
  'The figure shows how many answers of a 5-shot classifier change when the'
  ' test image is shifted. A convolution treats all places of an image alike. A'
  ' ViT has to learn this from data.'
)
_NOTES = (
  'The paper has no such experiment. It only says that translation equivariance'
  ' is built into ResNets, and hardly into ViTs (3.1). The claims are from the'
  ' literature. arXiv:2210.02984 finds that Transformers can learn translation'
  ' equivariance. We count changed answers as arXiv:1904.11486 does.',
  'The models are those of Figure 4. No other models are trained for this'
  ' section. The weights are those of the best step, if the run has kept them,'
  ' and otherwise those of the last step.',
  'The answers are not those of the model itself. A 5-shot classifier takes the'
  " model's features, and is fitted to five unshifted images of each class. It"
  ' then answers for up to 1,000 test images, unshifted and shifted. Each'
  ' number is the mean over shifts up, down, left and right. A shift leaves an'
  ' empty strip at one border, which the mirrored image fills.',
  'A model that knows little changes many answers. To judge this, the table'
  ' also shows the accuracy. Shifts are given in patches of 32 px, for images'
  ' of 224 px. They are the same for all models, also for those with other'
  ' patches.',
)
_MINI_NOTE = (
  'In miniature, the data set that stands for ImageNet asks where the shapes'
  ' are, and a shift moves the shapes. So this section instead uses'
  ' shapes:shape+colour, unless you use your own images.'
)
_BEYOND = 'Beyond the paper: '
_SHIFT = 'A shift is by a quarter of a patch of 32 px.'


def _claims(scale: str) -> list[Claim]:
  vit, resnet = figure4.rivals(scale)
  few, every, resnet_few, resnet_every = map(
    NUMBERS['shift_quarter'], figure4.few_and_all(scale).values()
  )
  return [
    Claim(
      'resnet_steadier_on_few',
      f'{_BEYOND}after pre-training on 9M images, a shift changes fewer answers'
      f' of {resnet} than of {vit}.',
      {f'changes of {vit} minus those of {resnet}': few - resnet_few},
      f'{_SHIFT} The paper names this bias of ResNets (3.1).',
    ),
    Claim(
      'vit_learns_it',
      f'{_BEYOND}a shift changes fewer answers of {vit} after pre-training on'
      ' all images than after pre-training on 9M images (arXiv:2210.02984).',
      {f'changes of {vit} after 9M images minus those after all': few - every},
      _SHIFT,
    ),
    Claim(
      'gap_shrinks',
      f'{_BEYOND}with more pre-training images, {vit} comes closer to'
      f' {resnet}. The share of answers that change is larger for {vit}. This'
      ' difference is smaller after all images than after 9M images.',
      {
        f'changes of {vit} beyond those of {resnet}: after 9M images minus'
        ' after all': (few - resnet_few) - (every - resnet_every)
      },
      _SHIFT,
    ),
  ]


def _cells(scale: str) -> Cells:
  return {
    (row, column): NUMBERS[kind](start)
    for row, start in figure4.few_and_all(scale).items()
    for column, kind in _COLUMNS.items()
  }


def _drawn(
  results: Results, pictures: pathlib.Path, table: Table
) -> Iterator[Picture]:
  marks = plots.marks_of(
    (row, shift, table.cells[row, column].ours)
    for row in table.rows
    for shift, column in _CURVE.items()
  )
  figure = plots.lines(
    marks,
    x_label='Shift, in patches of 32 px at 224 px',
    y_label='Changed 5-shot answers (%)',
  )
  yield plots.save(_NAME, _TITLE, _CAPTION, figure, marks, pictures, results)


ITEM = of_means(
  _NAME,
  _TITLE,
  _cells,
  heading='Percent of test images',
  claims=_claims,
  notes=lambda results: _NOTES if results.comparable else (*_NOTES, _MINI_NOTE),
  more=_drawn,
  beyond=True,
)
