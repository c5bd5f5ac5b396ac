"""Beyond the paper: accuracy without near-duplicates of test images.

The paper removes near-duplicates of test images from its pre-training data, and
does not show what that changes. Here models that may have seen some of them
are tested with and without the images concerned. `python -m vit_jax.dedup`
lists these for one pre-training set at a time:

  DIR/jft300m/exclude_test*.json
  DIR/imagenet21k/exclude_test*.json

Each list is of the task whose data spec is its `dataset`.
"""

import pathlib
from collections.abc import Iterator, Mapping

from vit_jax.data import exclusion
from vit_jax.paper.claims import difference, of_run
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import IMAGENET21K, JFT, REAL
from vit_jax.paper.report import Cell, Missing, Table
from vit_jax.paper.runs import (
  ACCURACY,
  DATASETS,
  Results,
  Transfer,
  pretraining,
)
from vit_jax.workdir import files

# The pre-training sets that may hold test images of a task.
DATA = (JFT, IMAGENET21K)
_LISTS = 'exclude_test*.json'
HOW = (
  '--clean=DIR names the test images that have near-duplicates, where python'
  ' -m vit_jax.dedup --data=SPEC --test=tfds:cifar10 --to=DIR/jft300m, or'
  ' DIR/imagenet21k, has found them in that pre-training set (docs/dedup.md).'
)


def find_lists(
  folder: str, tests: Mapping[str, tuple[str, str]]
) -> dict[tuple[str, str], str]:
  """Returns (pre-training set, task) -> the path of its list.

  Lists of other data sets are left out. Whether a list is for this copy of the
  data is checked when the data set is opened.

  Args:
    folder: DIR, local or in a bucket.
    tests: task -> its data spec, and the split that is reported.

  Raises:
    ValueError: there is no usable list, a file is no list, a list is not of the
      split that is reported, or a task has several.
  """
  root = files.absolute(folder)
  tasks = {spec: task for task, (spec, _) in tests.items()}
  found: dict[tuple[str, str], str] = {}
  others: list[str] = []
  for data in DATA:
    for path in sorted((root / DATASETS[data]).glob(_LISTS)):
      spec, entries = exclusion.read(path)
      if spec not in tasks:
        others.append(f'{path} is of {spec}')
        continue
      task = tasks[spec]
      reported = tests[task][1]
      if reported not in entries:
        splits = ', '.join(map(repr, entries)) or 'none'
        raise ValueError(
          f'{path} is about the split {splits}, but {reported!r} is reported:'
          ' write it again with python -m vit_jax.dedup'
          f' --test_split={reported}.'
        )
      if (data, task) in found:
        raise ValueError(
          f'{found[data, task]} and {path} are both of {spec}: leave one in'
          f' {path.parent}.'
        )
      found[data, task] = str(path)
  if not found:
    raise ValueError(
      f'--clean={folder} has no usable list'
      f'{f" ({others[0]})" if others else ""}: expected'
      f' {" or ".join(f"{DATASETS[data]}/{_LISTS}" for data in DATA)} there, of'
      f' {", ".join(tasks)}. {HOW}'
    )
  return found


# What the page shows. ---------------------------------------------------------

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
    if data in DATA and task != REAL
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
    yield Missing(HOW)


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  lambda scale: [*nodes().values()],
  beyond=True,
  scales=('paper',),
)
