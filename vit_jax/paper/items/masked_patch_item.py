"""Masked patch prediction as an item (Section 4.6, B.1.2)."""

import pathlib
from collections.abc import Mapping, Sequence

from vit_jax.paper import averages, claims, numbers, pictures
from vit_jax.paper.items import table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.pictures import Panel
from vit_jax.paper.report import Cell, Claim, Number, Picture, Section, Table
from vit_jax.paper.runs import Pretraining, Results, Transfer

NAME = 'masked_patch'
_MODEL = 'ViT-B/16'
# The paper does not say how many seeds it has; claims need a spread. The runs
# from scratch, and on JFT-300M with labels, are those of Figure 3.
_SEEDS = 3
# A wide margin is more than this multiple of the baseline's accuracy.
_MARGIN = 2.0
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
  masked = [
    Pretraining(_MODEL, values.JFT, 14, seed=seed, objective='masked_patch')
    for seed in range(_SEEDS)
  ]
  scratch, large, larger = (
    table_items.pretraining(_MODEL, data)
    for data in (values.IMAGENET, values.IMAGENET21K, values.JFT)
  )
  starts = {
    _MASKED: masked,
    _SCRATCH: table_items.seeds(scratch, _SEEDS),
    'Supervised, ImageNet-21k': [large],
    _SUPERVISED: table_items.seeds(larger, _SEEDS),
  }
  rows = {
    row: [Transfer(start, values.IMAGENET) for start in of]
    for row, of in starts.items()
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
    blocks = [table, *_claims(results, starts)]
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

  nodes = (
    *masked,
    *(transfer for transfers in rows.values() for transfer in transfers),
  )
  return Item(NAME, _TITLE, nodes, render)


def _notes(results: Results) -> list[str]:
  """Returns what a reader must know about the rows."""
  notes = [
    *table_items.seen(results),
    *table_items.images_21k(results),
    'Numbers are means over the fine-tuning runs of three pre-trainings each;'
    ' ImageNet-21k has only one pre-training.',
  ]
  if not results.comparable:
    notes.append(
      'In miniature, "From scratch" is a model pre-trained on the few images'
      ' that stand for ImageNet: 200 if they are rendered scenes.'
    )
  return notes


def _claims(
  results: Results, starts: Mapping[str, Sequence[Pretraining]]
) -> list[Claim]:
  accuracy, baseline = (
    results.number(starts[_MASKED], f'validation/{metric}')
    for metric in ('accuracy', 'baseline_accuracy')
  )
  masked, scratch, supervised = (
    averages.transfers(results, starts[row], values.IMAGENET)
    for row in (_MASKED, _SCRATCH, _SUPERVISED)
  )
  unit = 'ImageNet accuracy in percent: masked patch prediction'
  of = 'Each value is the mean over the fine-tuning runs of one pre-training.'
  return [
    _predicts(accuracy, baseline),
    Claim(
      'Pre-training by masked patch prediction beats training from scratch'
      ' (4.6).',
      claims.compare(masked, scratch),
      f'{unit} {_text(masked)}, from scratch {_text(scratch)}. {of}',
    ),
    Claim(
      'Masked patch prediction stays behind pre-training with labels (4.6).',
      claims.compare(supervised, masked),
      f'{unit} {_text(masked)}, supervised on JFT-300M {_text(supervised)}.'
      f' {of}',
    ),
  ]


def _predicts(accuracy: Number | None, baseline: Number | None) -> Claim:
  """Tests whether far more predictions are right than with a constant answer.

  The test is on each run's accuracy minus `_MARGIN` times its own baseline.

  Args:
    accuracy: in percent of the corrupted patches, a value for each run.
    baseline: the accuracy of the most frequent colour, for the same runs.
  """
  evidence = (
    'In percent of the corrupted patches of held-out images: right predictions'
    f' {_text(accuracy)}; the most frequent colour {_text(baseline)}.'
  )
  margin = None
  if accuracy and baseline:
    pairs = list(zip(accuracy.values, baseline.values, strict=True))
    margin = Number(tuple(a - _MARGIN * b for a, b in pairs), accuracy.runs)
    if all(baseline.values):
      ratio = Number(tuple(a / b for a, b in pairs), accuracy.runs)
      evidence += f' That is {_text(ratio)} times as many.'
  return Claim(
    'The mean colours of masked patches (B.1.2) can be predicted by a wide'
    f' margin, which we set: more than {_MARGIN:g} times as many predictions'
    ' are right as with always the most frequent colour.',
    claims.decide([(1.0, margin)]),
    evidence,
  )


def _text(number: Number | None) -> str:
  return claims.text(number, 2, 'pre-training')
