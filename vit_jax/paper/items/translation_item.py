"""Beyond the paper: answers to shifted images, by the number of images seen."""

import pathlib

from vit_jax.compare import drawing
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
  'How many 5-shot answers a shift changes. A convolution treats all places'
  ' alike; a ViT has to learn this.'
)
_NOTES = (
  'The paper has no such experiment: the claims are from the literature. The'
  ' paper only says that translation equivariance is built into ResNets, and'
  ' hardly into ViTs (3.1). That Transformers can learn it is the finding of'
  ' arXiv:2210.02984. Counting the answers that change follows'
  ' arXiv:1904.11486.',
  "The runs are Figure 4's; nothing else is trained. The weights are the best"
  ' that a run keeps, or else its last ones.',
  'The answers are those of 5-shot classifiers of the features, fitted to'
  ' unshifted images, on up to 1,000 test images. Numbers are means over shifts'
  ' up, down, left and right. The mirrored image fills the border.',
  'A model that knows little changes its answers easily, so the accuracy stands'
  ' beside them. Of shifts, patches are 32 px at 224 px for all models.',
)
_MINI_NOTE = (
  "In miniature, ImageNet's stand-in asks where a scene is, and a shift moves"
  ' it. So the answers here are to shape and colour (shapes:shape+colour),'
  ' unless the images are your own.'
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
