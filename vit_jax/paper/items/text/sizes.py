"""Sizes of effects, where the paper prints them, beside ours (4.6).

Figure 5 has the other one: 2 to 4 times the compute.
"""

import pathlib
from collections.abc import Iterator

from vit_jax.paper import answers, claims
from vit_jax.paper.claims import Claim, tuned
from vit_jax.paper.item import Item, nodes_of
from vit_jax.paper.items import masked
from vit_jax.paper.numbers import IMAGENET, Value
from vit_jax.paper.report import Cell, Number, Table
from vit_jax.paper.runs import Results

_MASKED, _SCRATCH, _, _SUPERVISED = map(tuned(IMAGENET), masked.ROWS.values())
_GAIN, _DEFICIT = _MASKED - _SCRATCH, _SUPERVISED - _MASKED
# Row -> the difference in points of ImageNet accuracy, and the paper's.
_ROWS = {
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
  for row, (size, printed) in _ROWS.items():
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
  yield Table(heading, [*_ROWS], ['points', 'from', 'to'], cells)


ITEM = Item(
  'sizes',
  'Sizes of effects that the paper prints',
  _blocks,
  lambda scale: nodes_of((_MASKED, _SCRATCH, _SUPERVISED)),
  claims.not_in_miniature(claims.PLATEAU, [_CLAIM]),
)
