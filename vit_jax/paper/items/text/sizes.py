"""Sizes of effects, where the paper prints them, beside ours (4.6).

Figure 5 has the other one: 2 to 4 times the compute.
"""

import pathlib

from vit_jax.paper import answers
from vit_jax.paper.claims import (
  PLATEAU,
  Claim,
  Contrast,
  Sum,
  not_in_miniature,
  total,
  tuned,
)
from vit_jax.paper.item import Item
from vit_jax.paper.items.text.masked_patch import MASKED
from vit_jax.paper.numbers import IMAGENET, JFT, Value
from vit_jax.paper.report import Cell, Number, Section, Table
from vit_jax.paper.runs import Results, Transfer, pretraining

_NAME = 'sizes'
_TITLE = 'Sizes of effects that the paper prints'
_MODEL = 'ViT-B/16'
_SCRATCH = pretraining(_MODEL, IMAGENET)
_SUPERVISED = pretraining(_MODEL, JFT)
_SIZE, _LOW, _HIGH = 'points', 'from', 'to'


def _of(one, other) -> Sum:
  return total(tuned(IMAGENET), one) - total(tuned(IMAGENET), other)


# Row -> the difference in points of ImageNet accuracy, and the paper's.
_ROWS = {
  'masked patches minus from scratch': (
    _of(MASKED, _SCRATCH),
    Value(2, note='Section 4.6', printed='2%'),
  ),
  'supervised on JFT-300M minus masked patches': (
    _of(_SUPERVISED, MASKED),
    Value(4, note='Section 4.6', printed='4%'),
  ),
}


def _claims(scale: str) -> list[Claim]:
  del scale
  (gain, _), (deficit, _) = _ROWS.values()
  claims = [
    Claim(
      'deficit_is_larger',
      'Pre-training by masked patch prediction is closer to training from'
      ' scratch than to pre-training with labels: it gains 2 points on the one,'
      ' and is 4 points behind the other (4.6).',
      (Contrast('deficit minus gain', deficit - gain),),
    )
  ]
  return not_in_miniature(PLATEAU, claims)


def _render(results: Results, pictures: pathlib.Path) -> Section:
  del pictures
  cells = {}
  values = answers.lookup(results)
  for row, (found, printed) in _ROWS.items():
    outcome = answers.test(found, values)
    numbers = (None, None, None)
    if outcome:
      numbers = (outcome.estimate, *(outcome.interval or (None, None)))
    for column, number in zip((_SIZE, _LOW, _HIGH), numbers, strict=True):
      ours = None if number is None else Number((number,), (row,))
      paper = printed if column == _SIZE else None
      cells[row, column] = Cell(ours, paper, expected=column == _SIZE)
  block = Table(
    'Points of accuracy on ImageNet, and their 95% interval',
    [*_ROWS],
    [_SIZE, _LOW, _HIGH],
    cells,
  )
  return Section(_NAME, _TITLE, (block,))


ITEM = Item(
  _NAME,
  _TITLE,
  _render,
  lambda scale: [
    Transfer(start, IMAGENET) for start in (MASKED, _SCRATCH, _SUPERVISED)
  ],
  _claims,
)
