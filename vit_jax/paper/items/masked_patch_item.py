"""Masked patch prediction as an item (Section 4.6, B.1.2)."""

import pathlib

from vit_jax.paper import averages, numbers, pictures
from vit_jax.paper.claims import masked_patch_claims
from vit_jax.paper.claims.masked_patch_claims import (
  MASKED,
  MODEL,
  SCRATCH,
  SUPERVISED,
)
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.pictures import Panel
from vit_jax.paper.report import Cell, Picture, Section, Table
from vit_jax.paper.runs import Results, Transfer, pretraining

NAME = 'masked_patch'
_IMAGES = 4
_TITLE = 'Pre-training by masked patch prediction'
_MASKED, _SCRATCH = 'Masked patch prediction', 'From scratch'
_SUPERVISED = 'Supervised, JFT-300M'
# Row -> key of `numbers.MASKED_PATCH`.
_PAPER = {
  _MASKED: 'masked patches',
  _SCRATCH: 'from scratch',
  'Supervised, ImageNet-21k': 'supervised, ImageNet-21k',
  _SUPERVISED: 'supervised, JFT-300M',
}


def masked_patch() -> Item:
  """ViT-B/16 on ImageNet by its pre-training, and predicted patches."""
  large = pretraining(MODEL, values.IMAGENET21K)
  rows = {
    row: Transfer(start, values.IMAGENET)
    for row, start in (
      (_MASKED, MASKED),
      (_SCRATCH, SCRATCH),
      ('Supervised, ImageNet-21k', large),
      (_SUPERVISED, SUPERVISED),
    )
  }

  def render(results: Results, folder: pathlib.Path) -> Section:
    cells = {
      (row, values.IMAGENET): Cell(
        results.number(
          [
            Transfer(start, values.IMAGENET)
            for start in results.seeds(node.pretraining)
          ],
          averages.ACCURACY,
        ),
        numbers.MASKED_PATCH[_PAPER[row]],
        results.has(node),
      )
      for row, node in rows.items()
    }
    table = Table(
      'ImageNet accuracy after fine-tuning', [*rows], [values.IMAGENET], cells
    )
    panels = [Panel('masked_patches', MODEL, MASKED, _IMAGES)]
    drawn = pictures.draw(NAME, panels, results, folder)
    blocks = [table]
    if drawn.titles:
      caption = (
        'Held-out images in three forms: as the model sees them, with masked'
        ' patches grey; with corrupted patches in the colours that it predicts;'
        ' and unchanged.'
      )
      blocks.insert(
        1, Picture('Predicted colours', f'{folder.name}/{NAME}', caption)
      )
    notes, missing = _notes(results), drawn.notes
    return Section(NAME, _TITLE, blocks, notes=notes, missing=missing)

  return Item(
    NAME,
    _TITLE,
    (MASKED, *rows.values()),
    render,
    claims=masked_patch_claims.masked_patch,
  )


def _notes(results: Results) -> list[str]:
  """Returns what a reader must know about the rows."""
  notes = [
    *table_items.seen(results),
    *table_items.images_21k(results),
    'A row may have several pre-trainings, each with several fine-tuning runs.'
    ' The number is the mean over all these fine-tuning runs.',
  ]
  if not results.comparable:
    notes.append(
      'The row "From scratch" is a model that is pre-trained with labels, but'
      ' on ImageNet alone, as in Table 5. In miniature, only few images stand'
      ' for ImageNet. With rendered scenes, these are 200 images.'
    )
  return notes
