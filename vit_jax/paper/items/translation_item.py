"""Beyond the paper: answers to shifted images, by the number of images seen."""

import pathlib

from vit_jax.pages import drawing
from vit_jax.paper import plots
from vit_jax.paper.claims import translation_claims
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Cell, Number, Picture, Section, Table
from vit_jax.paper.runs import Pretraining, Results

NAME = 'translation'
_TITLE = 'Answers to shifted images, by number of pre-training images'
# Column -> kind of `measures.Inside`.
_COLUMNS = {
  '5-shot accuracy': 'shift_accuracy',
  'lost by 1/4 patch': 'shift_loss',
  'changed by 1/8 patch': 'shift_eighth',
  'changed by 1/4 patch': 'shift_quarter',
}
# Shift in patches -> kind.
_CURVE = {1 / 8: 'shift_eighth', 1 / 4: 'shift_quarter'}
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


def translation() -> Item:
  """Changed answers of Figure 4's small models, on 9M images and on all."""

  def render(results: Results, pictures: pathlib.Path) -> Section:
    starts = {
      f'{model}, {translation_claims.NAMES[images]}': start
      for (model, images), start in translation_claims.starts(
        results.scale
      ).items()
    }
    table = Table(
      'Percent of test images',
      [*starts],
      [*_COLUMNS],
      {
        (row, column): Cell(_number(results, start, kind))
        for row, start in starts.items()
        for column, kind in _COLUMNS.items()
      },
    )
    curves = {
      row: [
        (shift, number)
        for shift, kind in _CURVE.items()
        if (number := _number(results, start, kind))
      ]
      for row, start in starts.items()
    }
    # A line for each label, as in Figure 9.
    drawing.save(
      plots.figure9(
        curves,
        x_label='Shift, in patches of 32 px at 224 px',
        y_label='Changed 5-shot answers (%)',
      ),
      pictures / NAME,
      plots.figure9_rows(curves),
      mark=results.mark,
    )
    picture = Picture(_TITLE, f'{pictures.name}/{NAME}', _CAPTION)
    notes = _NOTES if results.comparable else (*_NOTES, _MINI_NOTE)
    return Section(NAME, _TITLE, (table, picture), notes=notes)

  return Item(
    NAME,
    _TITLE,
    tuple(translation_claims.starts('paper').values()),
    render,
    in_miniature=tuple(translation_claims.starts('mini').values()),
    claims=translation_claims.translation,
    inside=tuple(_COLUMNS.values()),
    beyond=True,
  )


def _number(results: Results, start: Pretraining, kind: str) -> Number | None:
  """Returns a number from the weights of each pre-training; None if missing."""
  nodes = results.seeds(start)
  found = [results.inside(node).get(kind) for node in nodes]
  if None in found:
    return None
  return Number(tuple(found), tuple(node.name for node in nodes))
