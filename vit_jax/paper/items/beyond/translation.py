"""Beyond the paper: answers to shifted images, by the number of images seen.

The paper says that translation equivariance is built into ResNets, and hardly
into ViTs (1, 3.1), but it does not measure it. That trained Transformers can
have as much of it as convolutional networks is the finding of arXiv:2210.02984.
"""

import pathlib

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim, Contrast, Mean, Sum, total
from vit_jax.paper.inside import NUMBERS
from vit_jax.paper.item import Item, cell
from vit_jax.paper.items.figures import figure4
from vit_jax.paper.report import Section, Table
from vit_jax.paper.runs import Pretraining, Results, structure

_NAME = 'translation'
_TITLE = 'Answers to shifted images, by number of pre-training images'
_VIT = 'ViT-B/32'
_FEW, *_, _ALL = figure4.IMAGES
_IMAGES = {_FEW: '9M images', _ALL: 'all images'}
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


def _starts(scale: str) -> dict[tuple[str, int | None], Pretraining]:
  """Returns (model, images) -> the first run, which is one of Figure 4's."""
  return {
    (model, images): figure4.start(model, images)
    for model in (_VIT, figure4.RESNET[structure(scale)])
    for images in _IMAGES
  }


def _claims(scale: str) -> list[Claim]:
  resnet, runs = figure4.RESNET[structure(scale)], _starts(scale)

  def of(model: str, images: int | None) -> Sum:
    return total(NUMBERS['shift_quarter'], runs[model, images])

  def gap(images: int | None) -> Sum:
    return of(_VIT, images) - of(resnet, images)

  return [
    Claim(
      'resnet_steadier_on_few',
      f'{_BEYOND}after pre-training on 9M images, a shift changes fewer answers'
      f' of {resnet} than of {_VIT}.',
      (Contrast(f'changes of {_VIT} minus those of {resnet}', gap(_FEW)),),
      f'{_SHIFT} The paper names this bias of ResNets (3.1).',
    ),
    Claim(
      'vit_learns_it',
      f'{_BEYOND}a shift changes fewer answers of {_VIT} after pre-training on'
      ' all images than after pre-training on 9M images (arXiv:2210.02984).',
      (
        Contrast(
          f'changes of {_VIT} after 9M images minus those after all',
          of(_VIT, _FEW) - of(_VIT, _ALL),
        ),
      ),
      _SHIFT,
    ),
    Claim(
      'gap_shrinks',
      f'{_BEYOND}with more pre-training images, {_VIT} comes closer to'
      f' {resnet}. The share of answers that change is larger for {_VIT}. This'
      ' difference is smaller after all images than after 9M images.',
      (
        Contrast(
          f'changes of {_VIT} beyond those of {resnet}: after 9M images minus'
          ' after all',
          gap(_FEW) - gap(_ALL),
        ),
      ),
      _SHIFT,
    ),
  ]


def _cells(scale: str) -> dict[tuple[str, str], Mean]:
  return {
    (f'{model}, {_IMAGES[images]}', column): Mean(NUMBERS[kind], start)
    for (model, images), start in _starts(scale).items()
    for column, kind in _COLUMNS.items()
  }


def _render(results: Results, pictures: pathlib.Path) -> Section:
  cells = {
    place: cell(mean, None, results)
    for place, mean in _cells(results.scale).items()
  }
  rows = [*dict.fromkeys(row for row, _ in cells)]
  block = Table('Percent of test images', rows, [*_COLUMNS], cells)
  marks = [
    mark
    for row in rows
    for shift, column in _CURVE.items()
    for mark in plots.Mark.of(row, shift, cells[row, column].ours)
  ]
  figure = plots.lines(
    marks,
    x_label='Shift, in patches of 32 px at 224 px',
    y_label='Changed 5-shot answers (%)',
  )
  picture = plots.save(
    _NAME, _TITLE, _CAPTION, figure, marks, pictures, results
  )
  notes = _NOTES if results.comparable else (*_NOTES, _MINI_NOTE)
  return Section(_NAME, _TITLE, (block, picture), notes=notes)


ITEM = Item(
  _NAME,
  _TITLE,
  _render,
  lambda scale: [*_starts(scale).values()],
  _claims,
  means=lambda scale: [*_cells(scale).values()],
  beyond=True,
)
