"""Beyond the paper: accuracy without near-duplicates of test images.

The paper removes near-duplicates of test images from its pre-training data, and
does not show what that changes. Here models that may have seen some of them
are tested with and without the images concerned, see `duplicate_lists`.
"""

import pathlib
from collections.abc import Iterator

from vit_jax.paper.claims import difference, of_run
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items import duplicate_lists
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import REAL
from vit_jax.paper.report import Cell, Missing, Table
from vit_jax.paper.runs import ACCURACY, Results, Transfer, pretraining

NAME = 'near_duplicates'
MODEL = 'ViT-L/16'
_TITLE = f'Accuracy of {MODEL} without test images that have near-duplicates'
_ALL, _CLEAN = 'All test images', 'Without near-duplicates'
_ACCURACY = of_run(f'{_ALL}: accuracy', ACCURACY)
_CLEAN_ACCURACY = of_run(f'{_CLEAN}: accuracy', 'test_clean/accuracy')
_COUNT, _CLEAN_COUNT = (
  of_run(metric, metric, 1.0) for metric in ('test/count', 'test_clean/count')
)
# Title of a table -> column -> what it shows of a row's runs; and the digits.
_TABLES = {
  _TITLE: (
    {
      _ALL: _ACCURACY,
      _CLEAN: _CLEAN_ACCURACY,
      'Difference': difference('change', _CLEAN_ACCURACY, _ACCURACY),
    },
    2,
  ),
  'Test images': (
    {'Left out': difference('left out', _COUNT, _CLEAN_COUNT), 'Of': _COUNT},
    0,
  ),
}
_NOTE = (
  'The paper removes near-duplicates of test images from the pre-training'
  ' data. Here, pre-training keeps all images. Instead, the test leaves out the'
  ' test images that have near-duplicates in the pre-training data. These'
  ' images may also be easier or harder for other reasons, so a change in'
  ' accuracy need not come from near-duplicates alone.'
)


def nodes() -> dict[str, Transfer]:
  """Returns row of Table 5 -> the fine-tuning runs, of each task once."""
  return {
    row: Transfer(pretraining(MODEL, data), task)
    for row, (data, task) in table5.ROWS.items()
    # ImageNet ReaL is another test of the same runs, with images of its own.
    if data in duplicate_lists.DATA and task != REAL
  }


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  if results.scale != 'paper':
    yield Missing("Not in miniature: it is about the paper's own data sets.")
    return
  tuned = nodes()
  clean = {r for r, n in tuned.items() if _CLEAN_COUNT.number(results, [n])}
  for title, (columns, digits) in _TABLES.items():
    cells = {
      (row, column): Cell(
        of.number(results, [node]),
        table5.PAPER[row, MODEL] if column == _ALL else None,
        expected=column == _ALL or row in clean,
      )
      for row, node in tuned.items()
      for column, of in columns.items()
    }
    yield Table(title, tuple(tuned), tuple(columns), cells, digits)
  yield _NOTE
  if not clean:
    yield Missing(duplicate_lists.HOW)


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  lambda scale: [*nodes().values()],
  beyond=True,
  scales=('paper',),
)
