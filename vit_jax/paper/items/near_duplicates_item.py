"""Accuracy with and without near-duplicates of test images, as an item.

The paper removes near-duplicates of test images from its pre-training data, and
does not show what that changes. Here models that may have seen some of them
are tested with and without the images concerned, see `vit_jax.paper.clean`.
"""

import pathlib
from collections.abc import Callable

from vit_jax.paper import averages, clean, numbers
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Cell, Number, Section, Table
from vit_jax.paper.runs import Results, Transfer, pretraining

NAME = 'near_duplicates'
MODEL = 'ViT-L/16'
_TITLE = f'Accuracy of {MODEL} without test images that have near-duplicates'
_ALL, _CLEAN, _CHANGE = (
  *('All test images', 'Without near-duplicates'),
  'Difference',
)
_OUT, _OF = 'Left out', 'Of'
_WITHOUT = {
  averages.ACCURACY: 'test_clean/accuracy',
  'test/count': 'test_clean/count',
}


def near_duplicates() -> Item:
  """Table 5's ViT-L/16, tested without images that pre-training has seen."""
  return Item(
    NAME,
    _TITLE,
    tuple(nodes().values()),
    _render,
    beyond=True,
    scales=('paper',),
  )


def nodes() -> dict[str, Transfer]:
  """Returns row of Table 5 -> the fine-tuning runs, of each task once."""
  return {
    row: Transfer(pretraining(MODEL, data), task)
    for row, (data, task) in zip(
      numbers.TABLE_5.rows, numbers.ROWS_5, strict=True
    )
    # ImageNet ReaL is another test of the same runs, with images of its own.
    if data in clean.DATA and task != values.REAL
  }


def _left_out(results: Results, node: Transfer, metric: str) -> Number | None:
  """Returns, run by run, a metric of all test images minus that of the rest."""
  scale = 100.0 if metric == averages.ACCURACY else 1.0
  whole, rest = (
    results.number([node], name, scale=scale)
    for name in (metric, _WITHOUT[metric])
  )
  if whole is None or rest is None:
    return None
  pairs = zip(whole.values, rest.values, strict=True)
  return Number(tuple(a - b for a, b in pairs), whole.runs)


def _render(results: Results, pictures: pathlib.Path) -> Section:
  del pictures
  if results.scale != 'paper':
    return Section(
      NAME,
      _TITLE,
      missing=("Not in miniature: it is about the paper's own data sets.",),
    )
  tuned = nodes()
  asked = {row for row, node in tuned.items() if results.asks(node, 'clean')}
  paper = numbers.TABLE_5

  def table(title: str, columns: dict[str, Callable], digits: int) -> Table:
    return Table(
      title,
      tuple(tuned),
      tuple(columns),
      {
        (row, column): Cell(
          of(node),
          paper[row, MODEL] if column == _ALL else None,
          expected=column == _ALL or row in asked,
        )
        for row, node in tuned.items()
        for column, of in columns.items()
      },
      digits,
    )

  def change(node: Transfer) -> Number | None:
    found = _left_out(results, node, averages.ACCURACY)
    return found and Number(tuple(-x for x in found.values), found.runs)

  accuracies = table(
    _TITLE,
    {
      _ALL: lambda node: results.number([node], averages.ACCURACY),
      _CLEAN: lambda node: results.number([node], _WITHOUT[averages.ACCURACY]),
      _CHANGE: change,
    },
    digits=2,
  )
  counts = table(
    'Test images',
    {
      _OUT: lambda node: _left_out(results, node, 'test/count'),
      _OF: lambda node: results.number([node], 'test/count', scale=1.0),
    },
    digits=0,
  )
  return Section(
    NAME,
    _TITLE,
    (accuracies, counts),
    notes=(
      'The paper removes near-duplicates of test images from the pre-training'
      ' data. It does not ask how much they would change the accuracy. Here,'
      ' pre-training keeps all images. Instead, the test leaves out the test'
      ' images that have near-duplicates in the pre-training data. The images'
      ' that are left out may also be easier or harder for other reasons, so a'
      ' change in accuracy need not come from near-duplicates alone.',
    ),
    missing=() if asked else (clean.HOW,),
  )
