"""Masked patch prediction as an item (Section 4.6, B.1.2)."""

import pathlib
from collections.abc import Sequence

from vit_jax.paper import claims, numbers, pictures, table_items, values
from vit_jax.paper.item import Item
from vit_jax.paper.pictures import Panel
from vit_jax.paper.report import Cell, Claim, Number, Picture, Section, Table
from vit_jax.paper.runs import Pretraining, Results, Transfer

NAME = 'masked_patch'
_MODEL = 'ViT-B/16'
# The paper does not say how many; claims need their spread.
_SEEDS = 3
_IMAGES = 4
_TITLE = 'Pre-training by masked patch prediction'
_MASKED, _SCRATCH = 'Masked patch prediction', 'From scratch'
# Row -> key of `numbers.MASKED_PATCH`.
_PAPER = {
  _MASKED: 'masked patches',
  _SCRATCH: 'from scratch',
  'Supervised, ImageNet-21k': 'supervised, ImageNet-21k',
  'Supervised, JFT-300M': 'supervised, JFT-300M',
}


def masked_patch() -> Item:
  """ViT-B/16 on ImageNet by its pre-training, and what is predicted."""
  masked = [
    Pretraining(_MODEL, values.JFT, 14, seed=seed, objective='masked_patch')
    for seed in range(_SEEDS)
  ]
  rows = {
    _MASKED: [Transfer(start, values.IMAGENET) for start in masked],
    **{
      row: [Transfer(table_items.pretraining(_MODEL, data), values.IMAGENET)]
      for row, data in (
        (_SCRATCH, values.IMAGENET),
        ('Supervised, ImageNet-21k', values.IMAGENET21K),
        ('Supervised, JFT-300M', values.JFT),
      )
    },
  }

  def render(results: Results, folder: pathlib.Path) -> Section:
    cells = {
      (row, values.IMAGENET): Cell(
        results.number(nodes, 'test/accuracy'),
        numbers.MASKED_PATCH[_PAPER[row]],
        all(map(results.has, nodes)),
      )
      for row, nodes in rows.items()
    }
    table = Table(
      'ImageNet accuracy after fine-tuning', [*rows], [values.IMAGENET], cells
    )
    panels = [Panel('masked_patches', _MODEL, masked[0], _IMAGES)]
    drawn = pictures.draw(NAME, panels, results, folder)
    blocks = [table, *_claims(results, table, masked)]
    if drawn.titles:
      caption = (
        'Held-out images as the model sees them, masked patches grey; with'
        ' their corrupted patches in the colours that it predicts; and as they'
        ' are.'
      )
      blocks.insert(
        1, Picture('Predicted colours', f'{folder.name}/{NAME}', caption)
      )
    return Section(NAME, _TITLE, blocks, notes=_NOTES, missing=drawn.notes)

  nodes = (
    *masked,
    *(transfer for transfers in rows.values() for transfer in transfers),
  )
  return Item(NAME, _TITLE, nodes, render)


_NOTES = (
  table_items.SEEN,
  'Numbers of masked patch prediction are means over three pre-training runs'
  ' and their fine-tuning, the others over the fine-tuning of one.',
)


def _claims(
  results: Results, table: Table, masked: Sequence[Pretraining]
) -> list[Claim]:
  accuracy, baseline = (
    results.number(masked, f'validation/{metric}')
    for metric in ('accuracy', 'baseline_accuracy')
  )
  ours, scratch = (
    table.cells[row, values.IMAGENET].ours for row in (_MASKED, _SCRATCH)
  )
  return [
    Claim(
      'The mean colours of masked patches can be predicted: more of them than'
      ' by always naming the most frequent one (B.1.2).',
      claims.compare(accuracy, baseline),
      'In percent of the corrupted patches of held-out images: right'
      f' {_text(accuracy)}; the most frequent colour {_text(baseline)}.',
    ),
    Claim(
      'Pre-training by masked patch prediction beats training from scratch'
      ' (4.6).',
      claims.compare(ours, scratch),
      f'ImageNet accuracy in percent: masked patch prediction {_text(ours)},'
      f' from scratch {_text(scratch)}. From scratch is one pre-training run:'
      ' its spread is that of fine-tuning.',
    ),
  ]


def _text(number: Number | None) -> str:
  if number is None:
    return 'missing'
  spread = '' if number.std is None else f' ± {number.std:.2f}'
  return f'{number.mean:.2f}{spread} ({len(number.values)} runs)'
